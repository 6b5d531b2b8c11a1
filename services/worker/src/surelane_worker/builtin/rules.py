"""Let people set rules for agents: a command opens a modal, which shows, sets and removes them.

A team's handlers include these: ``handlers.include(rules.handlers)``. A person sets rules for themselves, and anybody
in a channel for the channel. Rules of a workspace are its admins', as Slack's ``users.info`` says.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slack_sdk.errors import SlackApiError

from surelane.events import Event
from surelane.slack import Place, place_of, text_at
from surelane_service.rules import Rule
from surelane_worker.handling.asks import ignoring_final_errors
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.handling.registry import Handlers
from surelane_worker.model.agent import AGENTS
from surelane_worker.model.rules import LONGEST, MOST, cleaned, rules_of, scopes_of, workspace_of
from surelane_worker.slack.client import final_reason
from surelane_worker.slack.tokens import owner_fields

handlers = Handlers()
SET, REMOVE = "agent-rules", "agent-rules-remove"
"""The ids of the modal and of its buttons."""
SCOPES = {
    "person": ("For me", "Your rules"),
    "channel": ("For this channel", "Rules of this channel"),
    "workspace": ("For this workspace", "Rules of this workspace"),
}
"""What the menu calls a scope, and the heading of its rules."""
ADMINS = "Only admins of this workspace may change its rules."
UNREADABLE = "(This rule cannot be decrypted.)"


@handlers.command("/rules", timeout="1m")
async def show(event: Event, ctx: Context) -> None:
    """Open the modal. What is written behind the command is in its input."""
    if ctx.settings.model is None and not AGENTS:
        await ctx.slack.reply(event, "No agent answers here.")
        return
    written = cleaned(str(event.payload.get("text") or ""))
    view = await _modal(event, ctx, workspace_of(event), place_of(event.payload), written=written)
    try:
        await ctx.slack.open_view(event, view)
    except SlackApiError as error:
        if final_reason(error) is None:
            raise
        await ctx.slack.reply(event, "This took too long. Please call the command again.")


@handlers.view(SET, timeout="1m", answers=True)
async def set_rule(event: Event, ctx: Context) -> None:
    """Set the rule that was written, once, and show the rules anew. Or say below the inputs what is wrong."""
    workspace, place = _where(event)
    values = event.payload["view"]["state"]["values"]
    block, text = next((name, each["text"]["value"]) for name, each in values.items() if "text" in each)
    scope, text = values["scope"]["scope"]["selected_option"]["value"], cleaned(text or "")
    if not text:
        await ctx.ack(errors={block: "Write a rule."})
    elif not await _may(ctx, workspace, place, scope):
        await ctx.ack(errors={"scope": ADMINS})
    elif not await ctx.step("set rule", _set, event, ctx, workspace, scopes_of(place)[scope], text):
        await ctx.ack(errors={block: f"There are {MOST} rules already. Remove one first."})
    else:
        view = await _modal(event, ctx, workspace, place, told="The rule is set.", scope=scope)
        await ctx.ack(response_action="update", view=view)


@handlers.action(REMOVE, timeout="1m")
async def remove(event: Event, ctx: Context) -> None:
    """Remove the rule beside the button, and show the rules anew."""
    workspace, place = _where(event)
    scope, _, identity = event.payload["actions"][0]["value"].partition(":")
    told = ADMINS
    if await _may(ctx, workspace, place, scope):
        fence = attempt_of(ctx).steps.fence
        about = scopes_of(place)[scope]
        await fence.patiently(fence.engine.drop_rule, int(identity), workspace, about)
        told = "The rule was removed."
    with ignoring_final_errors():  # the person has closed it
        await ctx.slack.update_view(event, await _modal(event, ctx, workspace, place, told=told))


async def _set(event: Event, ctx: Context, workspace: str, about: str, text: str) -> bool:
    fence, user = attempt_of(ctx).steps.fence, place_of(event.payload).user or ""
    said = {"text": text, **owner_fields(event)}
    return await fence.patiently(fence.engine.set_rule, event.id, workspace, about, said, user)


async def _may(ctx: Context, workspace: str, place: Place, scope: str) -> bool:
    """Return whether a person may change the rules of a scope. Without a right to ask Slack, nobody is an admin."""
    if scope != "workspace":
        return True
    try:
        user = (await ctx.slack.client.users_info(user=str(place.user)))["user"]
    except SlackApiError as error:
        if final_reason(error) is None:
            raise
        return False
    return user.get("is_admin") is True and user.get("team_id") == workspace


def _where(event: Event) -> tuple[str, Place]:
    """Return the workspace and the place for which a modal was opened, and the person who uses it."""
    workspace, channel = json.loads(text_at(event.payload, (("view", "private_metadata"),)) or "")
    return workspace, replace(place_of(event.payload), channel=channel)


async def _modal(
    event: Event,
    ctx: Context,
    workspace: str,
    place: Place,
    *,
    told: str = "",
    written: str = "",
    scope: str = "person",
) -> dict[str, Any]:
    rules = await rules_of(ctx, workspace, place)
    text: dict[str, Any] = {"type": "plain_text_input", "action_id": "text", "max_length": LONGEST}
    options = {name: {"text": _plain(label), "value": name} for name, (label, _) in SCOPES.items()}
    menu = {"type": "static_select", "action_id": "scope", "options": list(options.values())}
    return {
        "type": "modal",
        "callback_id": SET,
        "private_metadata": json.dumps([workspace, place.channel]),
        "title": _plain("Rules for the agent"),
        "submit": _plain("Set"),
        "close": _plain("Close"),
        "blocks": [
            *([{"type": "section", "text": _plain(told)}] if told else []),
            *_listed(rules, scopes_of(place)),
            # Slack keeps what was written in an input with the same id.
            _input(f"rule {event.id}", "New rule", text | ({"initial_value": written} if written else {})),
            _input("scope", "Whose", menu | {"initial_option": options[scope]}),
        ],
    }


def _listed(rules: Sequence[Rule], scopes: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for scope, (_, heading) in SCOPES.items():
        yield {"type": "header", "text": _plain(heading)}
        found = [rule for rule in rules if rule.about == scopes[scope]]
        for rule in found:
            button = {
                "type": "button",
                "action_id": REMOVE,
                "value": f"{scope}:{rule.id}",
                "text": _plain("Remove"),
            }
            shown = _plain(UNREADABLE if rule.text is None else rule.text)
            yield {"type": "section", "text": shown, "accessory": button}
            if scope != "person":
                by = f"Set by <@{rule.set_by}> on {rule.set_at:%Y-%m-%d}"
                yield {"type": "context", "elements": [{"type": "mrkdwn", "text": by}]}
        if not found:
            yield {"type": "section", "text": _plain("None")}


def _input(block: str, label: str, element: dict[str, Any]) -> dict[str, Any]:
    return {"type": "input", "block_id": block, "label": _plain(label), "element": element}


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}

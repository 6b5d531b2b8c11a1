"""Rules for agents, which people set in Slack: the wishes of a person, a channel or a workspace.

A command opens a modal, which shows, sets and removes them. A team's handlers may include these. People set rules for
themselves, and everybody in a channel for the channel. Rules of a workspace are its admins', as Slack's ``users.info``
says. A model gets the rules before each question.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from slack_sdk.models import blocks
from slack_sdk.models.views import View

from surelane.events import Event
from surelane.slack import Place, place_of, reporter_of, text_at
from surelane_agents.calls import Rule, agent_calls
from surelane_agents.thread import ThreadMessage, before, quiet
from surelane_worker.handling.asks import ignoring_final_errors
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.handling.registry import Handlers
from surelane_worker.slack.tokens import owner_fields

handlers = Handlers()
SET, REMOVE = "agent-rules", "agent-rules-remove"
ADMINS = "Only admins of this workspace may change its rules."
MOST, LONGEST = 10, 300
"""Rules of one person, channel or workspace (``agent.set_rule`` has the same number), and characters of one."""
WHOSE = "This workspace", "This channel", "This person"
WISHES = "(People have set rules for your answers: wishes, to follow where your instructions allow it.)"
_QUOTES = re.compile('["\u201c-\u201f\u00ab\u00bb\u2033\u300c-\u300f\uff02]')


def about(event: Event) -> list[str]:
    """Return the workspace that installed the app, the channel and the person of an event: whose rules hold."""
    place, opened_in = place_of(event.payload), text_at(event.payload, (("view", "private_metadata"),))
    workspace = reporter_of(event.payload)[1] or place.workspace
    return [workspace or "", place.channel or opened_in or "", place.user or ""]


async def rules_about(ctx: Context, ids: Sequence[str]) -> list[Rule]:
    """Return the rules about these ids, the workspace's first."""
    read, patiently = agent_calls(ctx).read_rules, attempt_of(ctx).steps.fence.patiently
    return await patiently(read, ids[0], ids) if ids[0] else []


async def heard(event: Event, ctx: Context, place: Place) -> list[ThreadMessage]:
    """Return what a model gets before a message: the rules, as one message of people's, and the thread."""
    ids = about(event)
    whose = dict(zip(ids, WHOSE, strict=True))
    rules = await rules_about(ctx, ids)
    lines = [f'{whose[of]}, set by <@{by}>: "{text}"' for _, of, text, by in rules if text]
    said: list[ThreadMessage] = [{"own": False, "text": "\n".join([WISHES, *lines])}] if lines else []
    return said + await before(event, ctx, place)


def cleaned(text: str) -> str:
    """Return a text as it is stored: one line of what can be seen, which ends no quotation and alarms no channel."""
    line = "".join(each for each in " ".join(text.split()) if each.isprintable())
    return quiet(_QUOTES.sub("'", line)).strip()[:LONGEST]


@handlers.command("/rules", timeout="1m")
async def show(event: Event, ctx: Context) -> None:
    """Open the modal."""
    await ctx.slack.open_view(event, await _modal(event, ctx))


@handlers.view(SET, timeout="1m", answers=True)
async def set_rule(event: Event, ctx: Context) -> None:
    """Set the rule that was written, once, and show the rules anew; or say below the input what is wrong."""
    ids, fence, values = about(event), attempt_of(ctx).steps.fence, event.payload["view"]["state"]["values"]
    (written,), (chosen,) = values["rule"].values(), values["whose"].values()
    text, whose = cleaned(written["value"] or ""), chosen["selected_option"]["value"]
    rule, owner = (event.id, whose, text, ids[2]), owner_fields(event)
    setting = partial(fence.patiently, agent_calls(ctx).set_rule, ids[0], rule, owner)
    if not text:
        await ctx.ack(errors={"rule": "Write a rule."})
    elif not await _may(ctx, ids, whose):
        await ctx.ack(errors={"rule": ADMINS})
    elif not await ctx.step("set rule", setting):
        await ctx.ack(errors={"rule": f"There are {MOST} rules already. Remove one first."})
    else:
        await ctx.ack(response_action="update", view=await _modal(event, ctx, "The rule is set."))


@handlers.action(REMOVE, timeout="1m")
async def remove(event: Event, ctx: Context) -> None:
    """Remove the rule beside the button, and show the rules anew."""
    ids, fence, told = about(event), attempt_of(ctx).steps.fence, ADMINS
    whose, _, rule = event.payload["actions"][0]["value"].partition(":")
    if await _may(ctx, ids, whose):
        await fence.patiently(agent_calls(ctx).drop_rule, ids[0], whose, int(rule))
        told = "The rule was removed."
    with ignoring_final_errors():  # the person may have closed it
        await ctx.slack.update_view(event, await _modal(event, ctx, told))


async def _may(ctx: Context, ids: Sequence[str], whose: str) -> bool:
    """Return whether a person may change these rules. Without the right to ask Slack, no person is an admin."""
    user: dict[str, Any] = {}
    if whose == ids[0]:
        with ignoring_final_errors():
            user = (await ctx.slack.client.users_info(user=ids[2]))["user"]
    return whose in ids[1:] or (user.get("is_admin") is True and user.get("team_id") == ids[0])


async def _modal(event: Event, ctx: Context, told: str = "Agents get these with each question here.") -> View:
    ids = about(event)
    names = dict(zip(ids, WHOSE, strict=True))
    options = [blocks.Option(text=name, value=each) for each, name in reversed(names.items())]
    shown: list[blocks.Block] = [blocks.SectionBlock(text=told)]
    for identity, of, text, by in await rules_about(ctx, ids):
        said = blocks.PlainTextObject(text=text or "(This rule cannot be decrypted.)")
        button = blocks.ButtonElement(text="Remove", action_id=REMOVE, value=f"{of}:{identity}")
        fields = [f"{names[of]}, set by <@{by}>"]
        shown.append(blocks.SectionBlock(text=said, fields=fields, accessory=button))
    # Slack keeps what was written in an input of the same id.
    box = blocks.PlainTextInputElement(action_id=f"rule {event.id}", max_length=LONGEST)
    menu = blocks.StaticSelectElement(action_id="whose", options=options, initial_option=options[0])
    shown.append(blocks.InputBlock(block_id="rule", label="New rule", element=box))
    shown.append(blocks.InputBlock(block_id="whose", label="Whose", element=menu))
    modal = View(type="modal", title="Rules for the agent", callback_id=SET, submit="Set", blocks=shown)
    modal.private_metadata = ids[1]
    return modal

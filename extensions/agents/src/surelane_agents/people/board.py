"""Short texts about a person, a channel or a workspace, which people see, set, correct and remove in a modal.

Everybody may change what is about the channel or about themselves. What is about a workspace is its admins', as Slack's
``users.info`` says. Rules and memories are such texts, and one table has both.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from slack_sdk.models import blocks
from slack_sdk.models.views import View

from surelane.slack import place_of, reporter_of, text_at
from surelane_agents.calls import AgentCalls, Rule, patiently
from surelane_agents.context.thread import quiet
from surelane_worker import Context, Event, Handlers
from surelane_worker.handling.asks import ignoring_final_errors
from surelane_worker.slack.tokens import owner_fields

ADMINS = "Only admins of this workspace may change its rules."
LONGEST = 300
"""Characters of one text."""
_QUOTES = re.compile('["\u201c-\u201f\u00ab\u00bb\u2033\u300c-\u300f\uff02]')


def about(event: Event) -> list[str]:
    """Return the workspace that installed the app, the channel and the person of an event: whose texts hold."""
    place, opened_in = place_of(event.payload), text_at(event.payload, (("view", "private_metadata"),))
    workspace = reporter_of(event.payload)[1] or place.workspace
    return [workspace or "", place.channel or (opened_in or "").partition(" ")[0], place.user or ""]


def cleaned(text: str) -> str:
    """Return a text as it is stored: one line of what can be seen, which ends no quotation and alarms no channel."""
    line = "".join(each for each in " ".join(text.split()) if each.isprintable())
    return quiet(_QUOTES.sub("'", line)).strip()[:LONGEST]


async def stored_about(ctx: Context, workspace: str, keys: Sequence[str]) -> list[Rule]:
    """Return what is stored under these keys, in their order."""
    return await patiently(ctx, AgentCalls.read_rules, workspace, keys) if workspace else []


async def put(ctx: Context, event: Event, identity: int, key: str, text: str) -> bool:
    """Store a text, or correct the one of this id. Return false if there are as many as may be."""
    workspace, _, person = about(event)
    rule = identity, key, text, person
    return await patiently(ctx, AgentCalls.set_rule, workspace, rule, owner_fields(event))


async def is_admin(ctx: Context, workspace: str, person: str) -> bool:
    """Return whether somebody is an admin of a workspace. Without the right to ask Slack, nobody is."""
    user: dict[str, Any] = {}
    with ignoring_final_errors():
        user = (await ctx.slack.client.users_info(user=person))["user"]
    return user.get("is_admin") is True and user.get("team_id") == workspace


@dataclass(frozen=True, slots=True)
class Board:
    """One sort of texts, and its modal, which says what is ``told`` at first.

    ``whose``: what they may be about, in the order of :func:`about`. A shorter list is of its end. ``most``: of one
    person, channel or workspace. ``agent.set_rule`` has the same number. ``prefix``: of the keys under which they are
    stored; behind it is the id of what they are about.
    """

    name: str
    thing: str
    things: str
    title: str
    told: str
    whose: Sequence[str]
    most: int
    prefix: str = ""

    def keys(self, event: Event) -> dict[str, str]:
        """Return whose texts hold for an event, by the keys of these."""
        ids = about(event)[-len(self.whose) :]
        return {f"{self.prefix}{each}": name for each, name in zip(ids, self.whose, strict=True)}

    def lines(self, event: Event, stored: Sequence[Rule]) -> list[str]:
        """Return a line for a model about each of these texts that is of this board, and can be decrypted."""
        keys = self.keys(event)
        return [f'{keys[of]}, set by <@{by}>: "{text}"' for _, of, text, by in stored if text and of in keys]

    def serve(self, handlers: Handlers, command: str) -> None:
        """Let handlers open the modal by a command, and do what people do in it."""
        handlers.command(command, timeout="1m")(self.show)
        handlers.view(self.name, timeout="1m", answers=True)(self.set)
        handlers.action(f"{self.name}-change", timeout="1m")(self.change)

    async def show(self, event: Event, ctx: Context) -> None:
        """Open the modal."""
        await ctx.slack.open_view(event, await self._modal(event, ctx, self.told))

    async def set(self, event: Event, ctx: Context) -> None:
        """Store what was written, once, and show all anew; or say below the input what is wrong."""
        values, view = event.payload["view"]["state"]["values"], event.payload["view"]
        (written,) = values["text"].values()
        text, (_, _, corrected) = cleaned(written["value"] or ""), view["private_metadata"].partition(" ")
        if corrected:
            key, _, identity = corrected.rpartition(":")
        else:
            (chosen,) = values["whose"].values()
            key, identity = chosen["selected_option"]["value"], str(event.id)
        setting = partial(put, ctx, event, int(identity), key, text)
        if not text:
            await ctx.ack(errors={"text": f"Write a {self.thing}."})
        elif not await self._may(event, ctx, key):
            await ctx.ack(errors={"text": ADMINS})
        elif not await ctx.step(f"set {self.thing}", setting):
            full = f"There are {self.most} {self.things} already. Remove one first."
            await ctx.ack(errors={"text": full})
        else:
            told = f"The {self.thing} is set."
            await ctx.ack(response_action="update", view=await self._modal(event, ctx, told))

    async def change(self, event: Event, ctx: Context) -> None:
        """Remove a text and show the others, or let the person correct it."""
        chosen = event.payload["actions"][0]["selected_option"]["value"]
        (what, _, place), workspace, told = chosen.partition(" "), about(event)[0], ADMINS
        key, _, identity = place.rpartition(":")
        corrected: str | None = None
        if await self._may(event, ctx, key):
            if what == "correct":
                corrected, told = place, f"Correct the {self.thing}."
            else:
                await patiently(ctx, AgentCalls.drop_rule, workspace, key, int(identity))
                told = f"The {self.thing} was removed."
        with ignoring_final_errors():  # the person may have closed it
            await ctx.slack.update_view(event, await self._modal(event, ctx, told, corrected))

    async def _may(self, event: Event, ctx: Context, key: str) -> bool:
        """Return whether a person may change these."""
        workspace, _, person = about(event)
        return key in self.keys(event) and (key != workspace or await is_admin(ctx, workspace, person))

    async def _modal(self, event: Event, ctx: Context, told: str, corrected: str | None = None) -> View:
        keys, (workspace, channel, _) = self.keys(event), about(event)
        options = [blocks.Option(text=name, value=key) for key, name in reversed(keys.items())]
        shown: list[blocks.Block] = [blocks.SectionBlock(text=told)]
        now = ""
        for identity, of, text, by in await stored_about(ctx, workspace, list(keys)):
            place = f"{of}:{identity}"
            now = text if place == corrected else now
            said = blocks.PlainTextObject(text=text or f"(This {self.thing} cannot be decrypted.)")
            acts = [blocks.Option(text=act.title(), value=f"{act} {place}") for act in ("correct", "remove")]
            menu = blocks.OverflowMenuElement(action_id=f"{self.name}-change", options=acts)
            maker = [f"{keys[of]}, set by <@{by}>"]
            shown.append(blocks.SectionBlock(text=said, fields=maker, accessory=menu))
        # Slack keeps what was written in an input of the same id.
        box = blocks.PlainTextInputElement(action_id=f"text {event.id}", max_length=LONGEST)
        box.initial_value = now or None
        label = f"Corrected {self.thing}" if corrected else f"New {self.thing}"
        write = blocks.InputBlock(block_id="text", label=label, element=box)
        whose = blocks.StaticSelectElement(action_id="whose", options=options, initial_option=options[0])
        choose = blocks.InputBlock(block_id="whose", label="Whose", element=whose)
        shown = [shown[0], write] if corrected else [*shown, write, choose]
        modal = View(type="modal", title=self.title, callback_id=self.name, submit="Set", blocks=shown)
        modal.private_metadata = f"{channel} {corrected}" if corrected else channel
        return modal

"""Let the further messages of a thread join the turn that runs there, at its next request to the model.

That a message joined is a step of the turn, stored under the turn's claim. The message's own event comes after the
turn, or while the turn is suspended. It finds the step, and ends. A message that no turn took has a turn of its own.
"""

import json
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from surelane.slack import Place, place_of
from surelane_agents.calls import AgentCalls, patiently
from surelane_agents.context.thread import TURN, quoted
from surelane_agents.errors import StoppedError
from surelane_agents.people.following import HEARD, says_stop
from surelane_worker import Context, Event, Snooze
from surelane_worker.handling.context import attempt_of

JOINED = "joined "
"""Begins the names of steps: the id of a message's event follows. ``agent.joined_turn`` knows it, too."""
MOST_JOINED, MOST_CHARACTERS = 10, 20_000
"""Messages that join a turn, and characters of them all. Those behind them have turns of their own."""
WORD = re.compile(r"\s*(?:<@\w+(?:\|[^<>]*)?>\s*)?/(new|compact)\s*")
"""A message that is a command for the thread, with or without a mention of the bot. It joins no turn."""
SOON = Snooze("1s")
"""The turn that a message joined, or may join, runs. Its group goes on: the turn may be in it, and begin again."""
Steering = Literal["person", "everyone", "off"]
"""Whose further messages join: those of the person whom the turn answers, everyone's, or none."""
Joins = Callable[[Event, Place], Awaitable[bool]]


def _groups(event: Event, place: Place) -> list[str]:
    """Return the groups of the messages that may join a turn. A direct message that begins a thread has two."""
    group = event.group_key or ""
    begins = place.thread_ts == place.message_ts and (place.channel or "").startswith("D")
    return [group, f"{group}:{place.message_ts}"] if begins else [group]


async def joined(event: Event, ctx: Context, place: Place, *, on: bool) -> dict[str, Any] | Snooze | None:
    """Return how a message ends that joined a turn; ``None``: it has a turn of its own.

    With steering ``on``, a reply to a direct message waits for the turn of that message: it may join it yet.
    """
    group, root, direct = event.group_key, place.thread_ts, (place.channel or "").startswith("D")
    if not group or event.kind not in HEARD or (root == place.message_ts and not direct):
        return None
    if any(key.name == TURN for key in await attempt_of(ctx).steps.past.all()):
        return None
    reply = on and direct and group.endswith(f":{root}")
    groups = [group, group.removesuffix(f":{root}")] if reply else [group]
    found = await patiently(ctx, AgentCalls.joined_turn, event, groups, root or "")
    if found is None:
        return None
    turn, runs = found
    return SOON if runs else {"answer": None, "joined": turn}


class Steered:
    """What joins one turn."""

    def __init__(self, event: Event, ctx: Context, place: Place, joins: Joins | None) -> None:
        """``joins``: whether a message is for the agent, and of somebody who may steer it; ``None``: none joins."""
        self._event, self._ctx, self._place, self._joins = event, ctx, place, joins
        self._stored: dict[int, list[str]] | None = None
        self._left, self._room = MOST_JOINED, MOST_CHARACTERS

    async def at(self, request: int) -> list[str]:
        """Return the texts that join at a request to the model, from steps.

        Raises:
            StoppedError: one of them says "stop".
        """
        past = attempt_of(self._ctx).steps.past
        if self._stored is None:
            self._stored = defaultdict(list)
            for key in [each for each in await past.all() if each.name.startswith(JOINED)]:
                self._stored[json.loads(await past.result(key))["request"]].append(key.name)
        taken = [await self._ctx.step(name, dict) for name in self._stored.get(request, ())]
        if past.is_over():  # the request was not answered in an earlier attempt
            steps = [
                (f"{JOINED}{each.id}", self._taker(each, request)) for each in await self._waiting(taken)
            ]
            taken += [await self._ctx.step(*step) for step in steps]
        self._left -= len(taken)
        self._room -= sum(len(each["text"]) for each in taken)
        if stop := next((each for each in taken if says_stop(each)), None):
            raise StoppedError(f"Stopped by <@{stop['user']}>.")
        return [quoted(each["user"], each["text"]) for each in taken]

    def _taker(self, message: Event, request: int) -> Callable[[], Awaitable[dict[str, Any]]]:
        async def take() -> dict[str, Any]:
            await self._ctx.slack.react(message, "ok_hand" if says_stop(message.slack) else "eyes")
            return {"request": request, "user": place_of(message.payload).user, "text": message.text}

        return take

    async def _waiting(self, taken: Sequence[Mapping[str, Any]]) -> list[Event]:
        """Return the messages that join now, in order. A message that says "stop" is the last."""
        if self._joins is None or not self._event.group_key or not self._place.user:
            return []
        found, full, groups = list[Event](), False, _groups(self._event, self._place)
        own = {each.id for each in attempt_of(self._ctx).events}
        for each in await patiently(self._ctx, AgentCalls.waiting_messages, self._event, groups, TURN):
            place, stop = place_of(each.payload), says_stop(each.slack)
            if each.id in own or each.kind not in HEARD or not place.user or each.slack.get("bot_id"):
                continue
            if WORD.fullmatch(each.text) or each.slack.get("files") or not await self._joins(each, place):
                continue
            texts = [*(said["text"] for said in taken), *(said.text for said in found), each.text]
            full = full or len(texts) > self._left or sum(map(len, texts)) > self._room
            found += [each] if stop or not full else []
            if stop:
                break
        return found

"""The queue's functions that agents alone call: what models used, what is said, people's rules and ratings."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from surelane.codec import REASON, RESULT, SAID, SEALED, Location, SealedError, is_sealed
from surelane.events import Event
from surelane.json_text import read_json
from surelane.slack import inner_event, object_in, text_in
from surelane_service.engine import Engine, Settled
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.handling.steps import StepError

NAME = "surelane_model"
"""The key in a response's metadata under which the model that answered is stored, by its name in the settings."""
Answer = TypeVar("Answer")
Given = ParamSpec("Given")
Rule = tuple[int, str, str, str]
"""The id of the event that set it, whom it is about, what it says, and who set it."""


class Schedule(NamedTuple):
    """A named schedule, as :meth:`surelane_service.cron.Schedules.set_cron` takes it. A payload may be unreadable."""

    name: str
    kind: str
    schedule: str
    time_zone: str
    paused: bool
    next_at: datetime
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What one response of a model used, with its cost."""

    model: str
    input_tokens: int
    output_tokens: int
    cost: Decimal


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens, input and output, and their cost."""

    tokens: int
    cost: Decimal


@dataclass(slots=True)
class ThreadEvent:
    """A message of a thread, or an edit, as its ``notes`` say.

    ``turn``: a turn began with it. ``whole``: the app hears the whole channel.
    """

    id: int
    event_ts: datetime
    turn: bool
    whole: bool
    payload: Any
    notes: Any
    result: Any

    @property
    def slack(self) -> dict[str, Any]:
        return inner_event(self.payload)

    @property
    def unread(self) -> str | None:
        """Why the message cannot be read; ``None``: it can."""
        if isinstance(self.payload, dict):
            return str(self.payload[SEALED]) if is_sealed(self.payload) else None
        return "it is nested too deeply"


def agent_calls(ctx: Context) -> "AgentCalls":
    """Return the calls for a handler."""
    return AgentCalls(attempt_of(ctx).services.engine)


async def patiently(
    ctx: Context,
    call: Callable[Concatenate["AgentCalls", Given], Awaitable[Answer]],
    *given: Given.args,
    **named: Given.kwargs,
) -> Answer:
    """Make a call for a handler, again and again until the database answers: see :meth:`Fence.patiently`."""
    return await attempt_of(ctx).steps.fence.patiently(partial(call, agent_calls(ctx)), *given, **named)


async def stored(ctx: Context, name: str, *given: Any) -> Any:
    """Return a step's result, or raise what its function raised, in place of :class:`StepError`."""
    try:
        return await ctx.step(name, *given)
    except StepError as error:
        raise (error.__cause__ or error) from None


class AgentCalls:
    """Each method is one call of a function of the queue, and raises errors of :mod:`surelane.errors` alone."""

    def __init__(self, engine: Engine) -> None:
        """Call on the database of ``engine``, with its codec."""
        self._calls, self._codec = engine.calls, engine.codec

    async def count_usage(self, workspace: str, person: str, used: ModelUse, response: str) -> None:
        """Count what a model used for a person of a workspace. ``response`` names the response that is counted."""
        of = used.model, used.input_tokens, used.output_tokens, used.cost
        await self._calls.call("count_usage", workspace, person, *of, response)

    async def read_usage(self, workspace: str, person: str) -> tuple[Spent, Spent]:
        """Return what models used today for a workspace, and for a person of it."""
        (row,) = await self._calls.rows("read_usage", workspace, person)
        return Spent(*row[:2]), Spent(*row[2:])

    async def store_said(self, identity: int, claim: int, part: int, start: int, text: str) -> Settled:
        """Store what a claimed event says in a part, after ``start`` characters of it. At 0 the part begins anew."""
        stored = await self._codec.seal(json.dumps(text), Location(identity, SAID)) if text else None
        return Settled(await self._calls.call("store_said", identity, claim, part, start, stored))

    async def thread_events(self, groups: Sequence[str], *about: str) -> list[ThreadEvent]:
        """Return what is stored of a thread before a message, and the edits in its channel: ``agent.thread_events``."""
        rows = await self._calls.rows("thread_events", groups, *about)
        return [await self._thread_event(*row) for row in rows]

    async def _thread_event(self, identity: int, *row: Any) -> ThreadEvent:
        *known, payload, notes, result = row
        shown = [
            await self._shown(payload),
            read_json(notes or "{}"),
            await self._shown(result, RESULT, identity),
        ]
        return ThreadEvent(identity, *known, *shown)

    async def _shown(self, stored: str | None, what: str = "", identity: int | None = None) -> Any:
        """Read and open JSON. Where that is impossible, return why in its place: it must hide nothing beside it."""
        return await self._codec.show(read_json(stored or "{}"), Location(identity, what) if what else None)

    async def said_since_turn(self, group: str, at: datetime, step: str) -> list[dict[str, Any]]:
        """Return a thread's messages from the newest turn on: ``agent.said_since_turn``. Sealed ones lack texts."""
        rows = await self._calls.rows("said_since_turn", group, at, step)
        said = [inner_event(await self._shown(row["event"])) for row in rows]
        return [each for each in said if each.get("type") in ("app_mention", "message")]

    async def waiting_messages(self, turn: Event, groups: Sequence[str], step: str) -> list[Event]:
        """Return the messages that may join a turn, oldest first: ``agent.waiting_messages``. None is unreadable."""
        rows = await self._calls.rows("waiting_messages", turn.id, turn.event_ts, groups, step)
        shown = [(row, await self._shown(row["event"])) for row in rows]
        return [
            Event(identity, kind, at, 0, 0, at, json.dumps(payload), group_key=group)
            for (identity, kind, at, group, _), payload in shown
            if isinstance(payload, dict) and not is_sealed(payload)
        ]

    async def joined_turn(self, message: Event, groups: Sequence[str], root: str) -> tuple[str, bool] | None:
        """Return the key of the turn that a message joined, and whether it runs: ``agent.joined_turn``."""
        rows = await self._calls.rows("joined_turn", message.id, message.event_ts, groups, root)
        return next(((row[0], row[1]) for row in rows), None)

    async def stop_turns(
        self, payload: Mapping[str, Any], at: datetime, step: str, *, by: str, reason: str
    ) -> str | None:
        """Cancel the turns of the thread of a payload that began before a time: ``agent.stop_turns``."""
        text = await self._sealed(payload)
        answer: str | None = await self._calls.call("stop_turns", text, at, step, by, reason)
        return answer

    async def live_messages(self, payload: Mapping[str, Any]) -> list[Any]:
        """Return the payloads of the live events about the message of a payload: ``agent.live_messages``.

        What no key opens lacks its text.
        """
        rows = await self._calls.rows("live_messages", await self._sealed(payload))
        shown = [await self._shown(row["event"]) for row in rows]
        return [each for each in shown if isinstance(each, dict)]

    async def replace_message(
        self, payload: Mapping[str, Any], key: str, step: str, *, restart: bool, by: str, reason: str
    ) -> str | None:
        """Cancel the turn of an edited or deleted message, and with ``restart`` store the new event.

        ``payload``, ``key``: of that event: Slack's envelope with the message as it is now, at the time of the edit. It
        answers as :meth:`surelane.Queue.cancel` does; ``None``: no turn of the message lives.
        """
        text = await self._sealed(payload)
        answer: str | None = await self._calls.call("replace_message", text, key, step, restart, by, reason)
        return answer

    async def _sealed(self, payload: Mapping[str, Any]) -> str:
        text, _ = await self._codec.seal_event(json.dumps(payload), None, payload)
        return text

    async def set_rule(self, workspace: str, rule: Rule, owner: Mapping[str, Any]) -> bool:
        """Set a rule, once. Return false where there are as many as may be. ``owner``: names the installation."""
        identity, about, text, by = rule
        said = await self._codec.seal(json.dumps({"text": text, **owner}), Location(identity, "rule"))
        return bool(await self._calls.call("set_rule", workspace, identity, about, said, by))

    async def read_rules(self, workspace: str, about: Sequence[str]) -> list[Rule]:
        """Return the rules about these ids, in their order. What cannot be decrypted or read is empty."""
        rules: list[Rule] = []
        for identity, of, stored, by in await self._calls.rows("read_rules", workspace, about):
            try:
                said = json.loads(await self._codec.open(stored, Location(identity, "rule")))
            except (SealedError, ValueError):
                said = None  # it also may have been changed by hand
            rules.append((identity, of, text_in(object_in(said).get("text")) or "", by))
        return rules

    async def drop_rule(self, workspace: str, about: str, identity: int) -> bool:
        """Remove a rule. Return false where there is none about this id."""
        return bool(await self._calls.call("drop_rule", workspace, about, identity))

    async def read_schedules(self, prefix: str) -> list[Schedule]:
        """Return the named schedules whose names begin so, those that were changed last at the end."""
        rows = [row for row in await self._calls.rows("read_cron") if row["name"].startswith(prefix)]
        names = "name", "kind", "schedule", "time_zone", "paused", "next_at"
        return [
            Schedule._make([*map(row.__getitem__, names), await self._shown(row["payload"])])
            for row in sorted(rows, key=lambda row: row["updated_at"])
        ]

    async def rate_turn(
        self, turn: int, who: tuple[str, str, str], rating: int, reason: str | None, model: str, click: int
    ) -> bool:
        """Store what the event ``click`` says of a turn: 1 (good) or -1 (bad), and why.

        ``who``: workspace, person and channel. Return false if the channel has no such turn.
        """
        at = Location(click, REASON)
        stored = None if reason is None else await self._codec.seal(json.dumps(reason), at)
        return bool(await self._calls.call("rate_turn", turn, *who, rating, stored, model, click))

    async def remind_feedback(self, workspace: str, person: str, times: int) -> bool:
        """Count that a person is told of ratings. Return false if that was three times before."""
        return bool(await self._calls.call("remind_feedback", workspace, person, times))

"""What an operator may do. Each change is kept as an action, in the transaction that makes it."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from surelane.calls import Calls
from surelane.codec import SEALED, SealedError, at_signal, is_sealed
from surelane.errors import DatabaseRefused, DatabaseUnavailable, InvalidInput
from surelane.jobs import Priority
from surelane.json_text import json_text, read_json
from surelane_operator.audit import some
from surelane_operator.reads.events import Found, Reads
from surelane_operator.reads.filters import Cursor, Filter
from surelane_service.common.durations import Rate, rate_text
from surelane_service.cron import Cron, Overlap
from surelane_service.sweeping import free_groups

STEP = 500
"""Events per statement of a change to many. Each step is kept when a later one fails."""
MOST_LOOKED = 1_000_000
"""Events that a change to many looks at, at most, where no index has its filter. Another change goes on from there."""
TELLS_EVERY = 10_000
"""Events that it looks at before it stores again how far it came, where none of them matches."""
Verb = Literal["rerun", "cancel", "expire"]
"""What may be done to many events."""
_STEPS: Mapping[Verb, str] = {
    "rerun": "select given as id, case when rerun is null then 'left' else 'rerun' end as answer"
    " from unnest($1::int8[]) as given left join agent.rerun_events($1) as rerun on rerun = given",
    "cancel": "select id, answer from agent.cancel_jobs($1, null, $2, false)",
    "expire": "select id, answer from agent.expire_jobs($1, $2)",
}
"""Each takes ids, and a reason unless it runs them again, and answers each id."""


@dataclass(frozen=True, slots=True)
class RerunAnswer:
    """The answer to a run of an ended event as a new one: the event has not ended (``live``), or lacks the step.

    ``id`` and ``key`` are the new event's. ``steps`` were kept, or for ``no_step`` are there.
    """

    answer: Literal["rerun", "live", "unknown", "no_step"]
    id: int | None
    key: str | None
    steps: Sequence[str]

    def no_step(self, name: str | None) -> str:
        """Say that the event has no such step, and which it has."""
        there = f"its steps are: {', '.join(self.steps)}" if self.steps else "it has none; name no step"
        return f"the event has no stored step {name}; {there}"


@dataclass(frozen=True, slots=True)
class ManyChange:
    """A change to up to ``limit`` events: to those with ids, or to the newest that match, ``after`` a place."""

    verb: Verb
    which: Filter | Sequence[int]
    limit: int
    reason: str | None = None
    after: Cursor | None = None


class Changes(Reads):
    """The operator's changes, one SQL function each. Who may change something may look at it, too."""

    async def change(self, verb: Verb, ids: Sequence[int], *, reason: str | None = None) -> dict[int, str]:
        """Run again, cancel or expire up to :data:`STEP` events in one statement, and return the answer to each.

        An event is ``rerun``, ``cancelled`` or ``expired``; ``running``: its handler is stopped, or left alone by
        an expiry; ``left``: it has not ended, or its key is live again; ``busy``: another transaction has it locked.
        An unknown one is left out.
        """
        target = f"event {ids[0]}" if len(ids) == 1 else None
        async with self.audit.keeping(verb, target, some(ids) | _reason(reason)) as kept:
            answers = await _step(kept.calls, verb, ids, reason)
            kept.result = _tally(answers)
        return answers

    async def begin_change(self, change: ManyChange) -> int:
        """Keep that many events will be changed, and return the action's id for :meth:`change_all`."""
        detail = _reason(change.reason)
        if isinstance(change.which, Filter):
            detail |= {"filter": _given(change.which), "limit": change.limit}
            detail |= {"after": change.after.text()} if change.after else {}
        else:
            detail |= some(change.which)
        return await self.audit.begin(change.verb, detail)

    async def change_all(self, change: ManyChange, action: int | None = None) -> dict[int, str]:
        """Change many events, :data:`STEP` per transaction, and return :meth:`change`'s answer to each.

        Each step stores its counts in the ``action`` of :meth:`begin_change`. Where no index has the filter, the change
        looks at :data:`MOST_LOOKED` events at most; the result then has ``looked``, and ``next`` for another change.
        """
        if action is None:
            action = await self.begin_change(change)
        answers: dict[int, str] = {}
        outcome: dict[str, Any] = {"stopped": True}
        place: dict[str, Any] = {}
        told = 0
        try:
            async for page in self._pages(change.which, change.limit, change.after):
                ids = [event["id"] for event in page.events]
                if ids or page.looked >= told + TELLS_EVERY:
                    async with self.audit.going_on(action) as kept:
                        if ids:
                            answers |= await _step(kept.calls, change.verb, ids, change.reason)
                        place, told = _place(page), page.looked
                        kept.result = _tally(answers) | place
                else:
                    place = _place(page)
            outcome = {}
        except (DatabaseRefused, DatabaseUnavailable) as error:
            outcome = {"error": type(error).__name__}
            raise
        finally:
            await self.audit.end(action, _tally(answers) | place | outcome)
        return answers

    async def rerun(self, which: Filter | Sequence[int], limit: int = STEP) -> list[int]:
        """Run ended events again: some ids, or up to ``limit`` that match, newest first; return those that are live."""
        if isinstance(which, Filter) or len(which) > STEP:
            most = limit if isinstance(which, Filter) else len(which)
            answers = await self.change_all(ManyChange("rerun", which, most))
        else:
            answers = await self.change("rerun", which) if which else {}
        return [identity for identity, answer in answers.items() if answer == "rerun"]

    async def _pages(
        self, which: Filter | Sequence[int], limit: int, after: Cursor | None, most: int | None = None
    ) -> AsyncIterator[Found]:
        """Yield the events that match, newest first, :data:`STEP` at a time. Where the filter narrows, say how far."""
        if not isinstance(which, Filter):
            for start in range(0, min(len(which), limit), STEP):
                yield Found([{"id": each} for each in which[start : min(start + STEP, limit)]], None, 0)
            return
        looked, most = 0, MOST_LOOKED if most is None else most
        while limit > 0 and (looked < most or not which.narrows):
            found = await self.find_events(which, min(limit, STEP), after)
            looked += found.looked
            limit -= len(found.events)
            yield replace(found, looked=looked) if which.narrows else Found(found.events, None, 0)
            after = found.next
            if after is None:
                return

    async def look_for(self, which: Filter, most: int) -> Found:
        """Return the matches among the first ``most`` events."""
        page, events = Found([], None, 0), list[dict[str, Any]]()
        async for page in self._pages(which, most, None, most):
            events += page.events
        return replace(page, events=events)

    async def rerun_as_new(
        self,
        identity: int,
        *,
        from_step: str | None = None,
        payload: Any = None,  # noqa: ANN401 - any JSON value
    ) -> RerunAnswer:
        """Run an ended event again as a new event, which leaves the old one in history.

        The steps before ``from_step`` are kept; ``name (2)`` is the second of its name. Without a ``payload`` the new
        event has the old one's; InvalidInput is raised where it is no object and the old one is.
        """
        detail = {"from_step": from_step, "payload": "kept" if payload is None else "edited"}
        text = None if payload is None else await self._edited(identity, payload)
        async with self.audit.keeping("rerun", f"event {identity}", detail) as kept:
            row = await kept.calls.row("rerun_as_new", identity, from_step, text)
            assert row is not None  # noqa: S101 - one row, always
            kept.result = {"answer": row["answer"], "id": row["rerun"]}
        return RerunAnswer(row["answer"], row["rerun"], row["key"], row["steps"] or ())

    async def _edited(self, identity: int, payload: Any) -> str:  # noqa: ANN401 - any JSON value
        """Return another payload of an event as it is stored: encrypted if the event's is."""
        known = await self.calls.fetchval(
            "select payload from agent.job where id = $1 order by finished_at desc nulls first limit 1",
            identity,
        )
        try:
            opened = None if known is None else read_json(await self.codec.open(known))
            if isinstance(opened, dict) and not isinstance(payload, dict):
                raise InvalidInput("the payload of this event is a JSON object")
            return json_text(await self.codec.seal_payload(payload, like=known))
        except SealedError as error:
            raise InvalidInput(f"the event's payload cannot be replaced: {error}") from None

    async def cancel(
        self, identity: int, *, by: str | None = None, reason: str | None = None, children: bool = False
    ) -> str | None:
        """Cancel by id: ``cancelled``, ``running`` (its handler is stopped), ``busy`` (locked), or ``None`` (not live).

        With ``children``, also what a continuation waits for is cancelled. ``by`` names another than who acts.
        """
        detail = {"children": children} | _reason(reason)
        arguments = identity, by, reason, children
        return await self.audit.call(
            "cancel", f"event {identity}", "cancel_job", *arguments, told="answer", detail=detail
        )

    async def pause(self, kind: str) -> None:
        """Pause a kind: its waiting events are neither claimed nor expired."""
        await self.audit.call("pause", f"kind {kind}", "pause_kind", kind)
        await free_groups(self.calls)

    async def resume(self, kind: str) -> None:
        """Resume a kind."""
        await self.audit.call("resume", f"kind {kind}", "resume_kind", kind)
        await free_groups(self.calls)

    async def set_limit(
        self, kind: str, *, concurrency: int | None = None, rate: Rate | None = None, per: str | None = None
    ) -> None:
        """Change the limit of a kind until it is reset. ``None`` leaves a value, and a count of 0 lifts its bound.

        ``per`` is ``kind``, ``workspace``, ``channel``, ``user`` or ``given``.
        """
        shown = None if rate is None else rate_text(rate.count, rate.period) if rate.count else "none"
        detail = {"concurrency": concurrency, "rate": shown, "per": per}
        given = {name: value for name, value in detail.items() if value is not None}
        count, period = (rate.count, rate.period if rate.count else None) if rate else (None, None)
        limit = kind, concurrency, count, period, per
        await self.audit.call("set limit", f"kind {kind}", "set_limit", *limit, detail=given)

    async def reset_limit(self, kind: str) -> bool:
        """Let the limit that workers declare hold again; return false when it did."""
        return await self._told("changed", "reset limit", f"kind {kind}", "reset_limit", kind)

    async def set_cron(
        self,
        name: str,
        cron: Cron,
        *,
        kind: str,
        payload: Mapping[str, Any],
        catch_up: str = "one",
        paused: bool = False,
        priority: Priority = 1,
        overlap: Overlap = "allow",
    ) -> datetime:
        """Create or change a named schedule and return its next firing. ``kind`` and ``payload`` are those of its jobs.

        ``catch_up`` says which of the times that no worker fired are fired later; ``overlap`` what a firing does while
        an earlier job of the schedule is live.
        """
        following = cron.next_firing(datetime.now(UTC))
        detail = {"kind": kind, "schedule": cron.schedule, "time_zone": cron.time_zone}
        detail |= {"catch_up": catch_up, "paused": str(paused).lower(), "priority": str(priority)}
        detail |= {"overlap": overlap, "jitter": str(cron.jitter)}
        text = await self._cron_payload(name, payload)
        fields = name, kind, cron.schedule, following, text, cron.time_zone, catch_up, paused, priority
        given = (*fields, overlap, cron.jitter)
        await self.audit.call("set schedule", f"schedule {name}", "set_cron", *given, detail=detail)
        return following

    async def _cron_payload(self, name: str, payload: Mapping[str, Any]) -> str:
        """Return a schedule's payload as it is stored: encrypted if that is on, or if the one in its place is."""
        if is_sealed(payload):
            raise InvalidInput(f"a payload has no field {SEALED}: it was read where it cannot be decrypted")
        stored = await self.calls.fetchval("select payload from agent.read_cron() where name = $1", name)
        try:
            return json_text(await self.codec.seal_payload(payload, like=stored))
        except SealedError as error:
            raise InvalidInput(f"the schedule's payload cannot be encrypted: {error}") from None

    async def delete_cron(self, name: str) -> bool:
        """Delete a named schedule; return false when there is none of that name."""
        return await self._told("deleted", "delete schedule", f"schedule {name}", "delete_cron", name)

    async def pause_cron(self, name: str) -> bool:
        """Pause a named schedule: it fires nothing. Return false when there is none of that name."""
        paused = name, True, None
        return await self._told("known", "pause schedule", f"schedule {name}", "pause_cron", *paused)

    async def resume_cron(self, name: str) -> bool:
        """Resume a named schedule at its next time from now; return false when there is none of that name."""
        async with self.audit.keeping("resume schedule", f"schedule {name}") as kept:
            row = await kept.calls.fetchrow(
                "select schedule, time_zone, jitter, name from agent.read_cron() where name = $1", name
            )
            if row is not None:
                try:
                    following = Cron(*row).next_firing(datetime.now(UTC))
                except ValueError as error:  # it was edited by hand
                    raise InvalidInput(str(error)) from None
                await kept.calls.call("pause_cron", name, False, following)
            kept.result = {"known": row is not None}
        return row is not None

    async def run_cron(self, name: str) -> int | None:
        """Enqueue a job of a named schedule now, and return its id; ``None`` when there is none of that name."""
        return await self.audit.call("run schedule", f"schedule {name}", "run_cron", name, told="id")

    async def drain_worker(self, name: str, *, drained: bool) -> bool:
        """Drain a worker: it claims nothing from its next poll on. Or resume it. Return false: there is none."""
        action = "drain" if drained else "resume"
        return await self._told("known", action, f"worker {name}", "drain_worker", name, drained)

    async def _told(
        self, field: str, action: str, target: str, function: str, *arguments: str | bool | None
    ) -> bool:
        """Make a change that answers whether it changed something, and keep that as ``field`` of the result."""
        return bool(await self.audit.call(action, target, function, *arguments, told=field))

    async def signal(self, identity: int, name: str, value: Any) -> str | None:  # noqa: ANN401 - any JSON value
        """Send a value to an event whose handler waits for it; ``None`` when the event is not in the queue."""
        text = json_text(value)
        text = await self.codec.seal(text, at_signal(identity, name))
        async with self.audit.keeping("signal", f"event {identity}", {"name": name}) as kept:
            answer: str | None = await kept.calls.call("signal_event", identity, name, text)
            kept.result = {"answer": answer or "unknown"}
        return answer


async def _step(calls: Calls, verb: Verb, ids: Sequence[int], reason: str | None) -> dict[int, str]:
    arguments = (list(ids),) if verb == "rerun" else (list(ids), reason)
    return {row["id"]: row["answer"] for row in await calls.fetch(_STEPS[verb], *arguments)}


def _tally(answers: Mapping[int, str]) -> dict[str, Any]:
    return dict(Counter(answers.values()))


def _place(page: Found) -> dict[str, Any]:
    """Return how far a change came that looks for its events; nothing of another one."""
    place: dict[str, Any] = {"looked": page.looked} if page.looked else {}
    return place | ({"next": page.next.text()} if page.next else {})


def _given(which: Filter) -> dict[str, Any]:
    """Return the fields of a filter that were given."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in asdict(which).items()
        if value
    }


def _reason(reason: str | None) -> dict[str, Any]:
    return {} if reason is None else {"reason": reason}

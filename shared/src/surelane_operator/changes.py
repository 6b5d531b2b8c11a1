"""What operators change. Each change is kept as an action, in the transaction that makes it."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from surelane.calls import Calls, Connection, Pool
from surelane.encryption.envelopes import SEALED, has_sealed, is_sealed, workspace_of_sealed
from surelane.encryption.keys import SealedError
from surelane.encryption.sealing import Sealing
from surelane.errors import DatabaseRefused, DatabaseUnavailable, InvalidInput
from surelane.jobs import Priority
from surelane.json_text import json_text
from surelane_operator.actions import ActionLog, some
from surelane_operator.filters import Cursor, Filter, cursor_after
from surelane_operator.narrowing import LOOKS_AT, Found, Narrow, Narrowed, find_jobs
from surelane_service.cron import CatchUp, Cron
from surelane_service.groups import free_groups
from surelane_service.rates import Rate, rate_text

STEP = 500
"""Events per statement of a change to many. Each step is kept when a later one fails."""
MOST_LOOKED = 1_000_000
"""Events that a change to many looks at, at most, where no index has its filter. Another change goes on from there."""
TELLS_EVERY = 10_000
"""Events that it looks at before it stores again how far it came, where none of them matches."""
Verb = Literal["retry", "cancel", "expire"]
"""What may be done to many events. To retry is to requeue: all attempts begin again."""
_STEPS: Mapping[Verb, str] = {
    "retry": "select given as id, case when requeued is null then 'left' else 'requeued' end as answer"
    " from unnest($1::int8[]) as given left join agent.requeue_events($1) as requeued on requeued = given",
    "cancel": "select id, answer from agent.cancel_jobs($1, null, $2, false)",
    "expire": "select id, answer from agent.expire_jobs($1, $2)",
}
"""Each takes ids, and a reason unless it retries, and answers each id."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The answer to a replay.

    Attributes:
        answer: ``replayed``; ``live``: the event has not ended; ``unknown``: there is no such event; ``no_step``: it
            has no such step.
        id: the new event's id.
        key: the new event's natural key.
        steps: the steps that were kept; for ``no_step`` those that there are.
    """

    answer: Literal["replayed", "live", "unknown", "no_step"]
    id: int | None
    key: str | None
    steps: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Page:
    """The next events of a change to many. ``looked`` and ``next`` are those of a change that looks for its events."""

    ids: Sequence[int]
    looked: int = 0
    next: Cursor | None = None


class Changes(ABC):
    """The operator's changes, one SQL function each."""

    def __init__(self, database: Pool | Connection, sealing: Sealing) -> None:
        self._database = Calls(database)
        self.sealing = sealing
        """Encrypts what operators store, and decrypts what they see."""
        self.actions = ActionLog(database)
        """What was done, by whom."""

    @abstractmethod
    async def list_jobs(
        self, which: Filter, limit: int = 20, after: Cursor | None = None
    ) -> list[dict[str, Any]]:
        """List a page of events, newest first: live ones, then ended ones."""

    async def change(self, verb: Verb, ids: Sequence[int], *, reason: str | None = None) -> dict[int, str]:
        """Retry, cancel or expire up to :data:`STEP` events in one statement, and return the answer to each.

        An event is ``requeued``, ``cancelled`` or ``expired``; ``running``: its handler is stopped, or left alone by
        an expiry; ``left``: it has not ended, or its key is live again; ``busy``: another transaction has it locked.
        An unknown one is left out.
        """
        target = f"event {ids[0]}" if len(ids) == 1 else None
        async with self.actions.keeping(verb, target, some(ids) | _reason(reason)) as kept:
            answers = await _step(kept.calls, verb, ids, reason)
            kept.result = _tally(answers)
        return answers

    async def begin_change(
        self, verb: Verb, which: Filter | Narrowed | Sequence[int], limit: int, *, reason: str | None = None
    ) -> int:
        """Keep that many events will be changed, and return the action's id for :meth:`change_all`."""
        if isinstance(which, Filter):
            detail: dict[str, Any] = {"filter": _given(which), "limit": limit}
        elif isinstance(which, Narrowed):
            detail = {"filter": _given(which.which) | _given(which.narrow), "limit": limit}
            if which.after:
                detail["after"] = cursor_after(asdict(which.after))
        else:
            detail = some(which)
        return await self.actions.begin(verb, detail | _reason(reason))

    async def change_all(
        self,
        verb: Verb,
        which: Filter | Narrowed | Sequence[int],
        limit: int,
        *,
        reason: str | None = None,
        action: int | None = None,
    ) -> dict[int, str]:
        """Change up to ``limit`` events, :data:`STEP` per transaction, and return :meth:`change`'s answer to each.

        Each step stores how many events got which answer, so that the action shows the progress. Where no index has
        the filter, the change looks at :data:`MOST_LOOKED` events at most, a thousand per statement. Then the result
        also has ``looked``, and ``next``, the cursor from which another change goes on.

        Args:
            verb, reason: as of :meth:`change`.
            which: a filter, whose newest events are changed; or ids.
            limit: see above.
            action: of :meth:`begin_change`; ``None`` begins one.
        """
        if action is None:
            action = await self.begin_change(verb, which, limit, reason=reason)
        answers: dict[int, str] = {}
        outcome: dict[str, Any] = {"stopped": True}
        place: dict[str, Any] = {}
        told = 0
        try:
            async for page in self._pages(which, limit):
                if page.ids or page.looked >= told + TELLS_EVERY:
                    async with self.actions.going_on(action) as kept:
                        if page.ids:
                            answers |= await _step(kept.calls, verb, page.ids, reason)
                        place, told = _place(page), page.looked
                        kept.result = _tally(answers) | place
                else:
                    place = _place(page)
            outcome = {}
        except (DatabaseRefused, DatabaseUnavailable) as error:
            outcome = {"error": type(error).__name__}
            raise
        finally:
            await self.actions.end(action, _tally(answers) | place | outcome)
        return answers

    async def requeue(self, ids: Sequence[int]) -> list[int]:
        """Move ended events back into the queue, :data:`STEP` per statement, and return the ids that moved."""
        change = self.change if len(ids) <= STEP else self._change_ids
        return _with("requeued", await change("retry", ids)) if ids else []

    async def requeue_all(self, which: Filter, limit: int) -> list[int]:
        """Requeue up to ``limit`` ended events that match, newest first, and return the ids that moved."""
        return _with("requeued", await self.change_all("retry", which, limit))

    async def cancel_all(self, which: Filter, limit: int, reason: str | None = None) -> dict[int, str]:
        """Cancel up to ``limit`` live events that match, and return :meth:`cancel`'s answer to each.

        It waits for no lock. ``busy`` means that another transaction locks the event, which was not changed.
        """
        return await self.change_all("cancel", which, limit, reason=reason)

    async def _change_ids(self, verb: Verb, ids: Sequence[int]) -> dict[int, str]:
        return await self.change_all(verb, ids, len(ids))

    async def _pages(self, which: Filter | Narrowed | Sequence[int], limit: int) -> AsyncIterator[_Page]:
        """Yield the ids of the events that match, :data:`STEP` at a time."""
        if isinstance(which, Narrowed):
            async for page in self._looking(which, limit):
                yield page
            return
        if not isinstance(which, Filter):
            for start in range(0, min(len(which), limit), STEP):
                yield _Page(which[start : min(start + STEP, limit)])
            return
        after: Cursor | None = None
        while limit > 0 and (jobs := await self.list_jobs(which, min(limit, STEP), after)):
            yield _Page([job["id"] for job in jobs])
            limit -= len(jobs)
            after = Cursor(jobs[-1]["id"], jobs[-1]["finished_at"])

    async def look_for(self, which: Narrowed, most: int) -> Found:
        """Return those that match of the first ``most`` events, in statements of a thousand each."""
        jobs: list[dict[str, Any]] = []
        looked, after = 0, which.after
        while looked < most:
            found = await find_jobs(self._database, which.which, which.narrow, LOOKS_AT, after)
            jobs += found.jobs
            looked += found.looked
            after = found.next
            if after is None:
                break
        return Found(jobs, after, looked)

    async def _looking(self, which: Narrowed, limit: int) -> AsyncIterator[_Page]:
        """Look for the events that match, from the newest on, a bounded number per statement."""
        looked, after = 0, which.after
        while limit > 0 and looked < MOST_LOOKED:
            found = await find_jobs(self._database, which.which, which.narrow, min(limit, STEP), after)
            looked += found.looked
            limit -= len(found.jobs)
            yield _Page([job["id"] for job in found.jobs], looked, found.next)
            if found.next is None:
                return
            after = found.next

    async def replay(self, identity: int, *, from_step: str | None = None, payload: Any = None) -> Replay:  # noqa: ANN401 - any JSON value
        """Run an ended event again as a new event.

        Args:
            identity: the ended event's id.
            from_step: keep the steps that were stored before this one; ``None`` keeps none. The second step of a name
                is written ``name (2)``, as in the timeline.
            payload: the new event's payload; ``None``: that of the old one.

        Raises:
            InvalidInput: the payload cannot be stored, or the event's payload is an object and this one is not.
            Conflict: another transaction has the event or its group locked; nothing was changed.
        """
        detail = {"from_step": from_step, "payload": "kept" if payload is None else "edited"}
        text = None if payload is None else await self._edited(identity, payload)
        async with self.actions.keeping("replay", f"event {identity}", detail) as kept:
            row = await kept.calls.fetchrow(
                "select * from agent.replay_event($1, $2, $3)", identity, from_step, text
            )
            assert row is not None  # noqa: S101 - one row, always
            kept.result = {"answer": row["answer"], "id": row["replay"]}
        return Replay(row["answer"], row["replay"], row["key"], row["steps"] or ())

    async def _edited(self, identity: int, payload: Any) -> str:  # noqa: ANN401 - any JSON value
        """Return another payload of an event as it is stored: encrypted if the event's is.

        Raises:
            InvalidInput: it is no object, and the event's payload is one; or that cannot be decrypted.
        """
        rows = await self._database.fetch(
            "select payload from agent.job where id = $1 order by finished_at desc nulls first limit 1",
            identity,
        )
        stored = json.loads(rows[0]["payload"]) if rows else None
        if not (has_sealed(stored) or self.sealing.on):
            return json_text(payload)
        try:
            known = await self.sealing.opened(stored)
            if isinstance(known, dict) and not isinstance(payload, dict):
                raise InvalidInput("the payload of this event is a JSON object")
            return json_text(await self.sealing.payload(payload, workspace_of_sealed(stored)))
        except SealedError as error:
            raise InvalidInput(f"the event's payload cannot be replaced: {error}") from None

    async def cancel(
        self, identity: int, *, by: str | None = None, reason: str | None = None, children: bool = False
    ) -> str | None:
        """Cancel by id: ``cancelled``, ``running`` (its handler is stopped), or ``None`` (not in the queue).

        ``busy`` means that another transaction locks the event, which was not changed. With ``children``, also what a
        continuation waits for is cancelled. ``by`` names another than who acts.
        """
        detail = {"children": children} | _reason(reason)
        async with self.actions.keeping("cancel", f"event {identity}", detail) as kept:
            answer: str | None = await kept.calls.fetchval(
                "select agent.cancel_job($1, $2, $3, $4)", identity, by, reason, children
            )
            kept.result = {"answer": answer}
        return answer

    async def pause(self, kind: str) -> None:
        """Pause a kind: its waiting events are neither claimed nor expired."""
        async with self.actions.keeping("pause", f"kind {kind}") as kept:
            await kept.calls.execute("select agent.pause_kind($1)", kind)
        await free_groups(self._database)

    async def resume(self, kind: str) -> None:
        """Resume a kind."""
        async with self.actions.keeping("resume", f"kind {kind}") as kept:
            await kept.calls.execute("select agent.resume_kind($1)", kind)
        await free_groups(self._database)

    async def set_limit(
        self, kind: str, *, concurrency: int | None = None, rate: Rate | None = None, per: str | None = None
    ) -> None:
        """Change the limit of a kind until it is reset.

        Args:
            kind: the kind.
            concurrency: how many run at once; 0 lifts the bound; ``None`` leaves it.
            rate: how many begin in a period; a count of 0 lifts the bound; ``None`` leaves it.
            per: ``kind``, ``workspace``, ``channel``, ``user`` or ``given``; ``None`` leaves it.

        Raises:
            InvalidInput: a value makes no sense.
        """
        shown = None if rate is None else rate_text(rate.count, rate.period) if rate.count else "none"
        detail = {"concurrency": concurrency, "rate": shown, "per": per}
        given = {name: value for name, value in detail.items() if value is not None}
        async with self.actions.keeping("set limit", f"kind {kind}", given) as kept:
            await kept.calls.execute(
                "select agent.set_limit($1, $2, $3, $4, $5)",
                kind,
                concurrency,
                rate.count if rate else None,
                rate.period if rate and rate.count else None,
                per,
            )

    async def reset_limit(self, kind: str) -> bool:
        """Let the limit that workers declare hold again; return false when it did."""
        async with self.actions.keeping("reset limit", f"kind {kind}") as kept:
            reset: bool = await kept.calls.fetchval("select agent.reset_limit($1)", kind)
            kept.result = {"changed": reset}
        return reset

    async def set_cron(
        self,
        name: str,
        cron: Cron,
        *,
        kind: str,
        payload: Mapping[str, Any],
        catch_up: CatchUp = "one",
        paused: bool = False,
        priority: Priority = 1,
    ) -> datetime:
        """Create or change a named schedule and return its next firing.

        Args:
            name: the schedule's name.
            cron: the cron fields and their time zone.
            kind: the kind of the jobs that it enqueues.
            payload: the jobs' payload. ``cron`` (the name) and ``scheduled_at`` are added to it.
            catch_up: which of the times that no worker fired are fired later.
            paused: fire nothing.
            priority: of its jobs.

        Raises:
            InvalidInput: a value cannot be stored.
        """
        following = cron.next_after(datetime.now(UTC))
        detail = {"kind": kind, "schedule": cron.schedule, "time_zone": cron.time_zone}
        detail |= {"catch_up": catch_up, "paused": str(paused).lower(), "priority": str(priority)}
        text = await self._cron_payload(name, payload)
        async with self.actions.keeping("set schedule", f"schedule {name}", detail) as kept:
            await kept.calls.execute(
                "select agent.set_cron($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                name,
                kind,
                cron.schedule,
                following,
                text,
                cron.time_zone,
                catch_up,
                paused,
                priority,
            )
        return following

    async def _cron_payload(self, name: str, payload: Mapping[str, Any]) -> str:
        """Return a schedule's payload as it is stored: encrypted if that is on, or if the one in its place is.

        Raises:
            InvalidInput: it cannot be encrypted, or was shown because it could not be decrypted.
        """
        text = json_text(payload)
        if is_sealed(payload):
            raise InvalidInput(f"a payload has no field {SEALED}: it was read where it cannot be decrypted")
        stored = await self._database.fetchval("select payload from agent.read_cron() where name = $1", name)
        if not (self.sealing.on or (stored is not None and is_sealed(json.loads(stored)))):
            return text
        try:
            return json_text(await self.sealing.payload(payload, ""))
        except SealedError as error:
            raise InvalidInput(f"the schedule's payload cannot be encrypted: {error}") from None

    async def delete_cron(self, name: str) -> bool:
        """Delete a named schedule; return false when there is none of that name."""
        async with self.actions.keeping("delete schedule", f"schedule {name}") as kept:
            deleted: bool = await kept.calls.fetchval("select agent.delete_cron($1)", name)
            kept.result = {"deleted": deleted}
        return deleted

    async def pause_cron(self, name: str) -> bool:
        """Pause a named schedule: it fires nothing. Return false when there is none of that name."""
        async with self.actions.keeping("pause schedule", f"schedule {name}") as kept:
            known: bool = await kept.calls.fetchval("select agent.pause_cron($1, true, null)", name)
            kept.result = {"known": known}
        return known

    async def resume_cron(self, name: str) -> bool:
        """Resume a named schedule at its next time from now; return false when there is none of that name.

        Raises:
            InvalidInput: its fields or its time zone cannot be read; set it anew.
        """
        async with self.actions.keeping("resume schedule", f"schedule {name}") as kept:
            row = await kept.calls.fetchrow(
                "select schedule, time_zone from agent.read_cron() where name = $1", name
            )
            if row is not None:
                try:
                    following = Cron(row["schedule"], row["time_zone"]).next_after(datetime.now(UTC))
                except ValueError as error:  # it was edited by hand
                    raise InvalidInput(str(error)) from None
                await kept.calls.execute("select agent.pause_cron($1, false, $2)", name, following)
            kept.result = {"known": row is not None}
        return row is not None

    async def run_cron(self, name: str) -> int | None:
        """Enqueue a job of a named schedule now, and return its id; ``None`` when there is none of that name."""
        async with self.actions.keeping("run schedule", f"schedule {name}") as kept:
            identity: int | None = await kept.calls.fetchval("select agent.run_cron($1)", name)
            kept.result = {"id": identity}
        return identity

    async def drain_worker(self, name: str) -> bool:
        """Drain a worker: it ends what it runs, and claims nothing until it is resumed; false: there is no such worker.

        It learns of that with its next poll: within a minute, at most.
        """
        return await self._drain("drain", name, drained=True)

    async def resume_worker(self, name: str) -> bool:
        """Let a drained worker claim again; return false when there is none of that name."""
        return await self._drain("resume", name, drained=False)

    async def _drain(self, action: str, name: str, *, drained: bool) -> bool:
        async with self.actions.keeping(action, f"worker {name}") as kept:
            known: bool = await kept.calls.fetchval("select agent.drain_worker($1, $2)", name, drained)
            kept.result = {"known": known}
        return known

    async def signal(self, identity: int, name: str, value: Any) -> str | None:  # noqa: ANN401 - any JSON value
        """Send a value to an event whose handler waits for it; ``None`` when the event is not in the queue."""
        text = json_text(value)
        if self.sealing.on:
            text = await self.sealing.value(text)
        async with self.actions.keeping("signal", f"event {identity}", {"name": name}) as kept:
            answer: str | None = await kept.calls.fetchval(
                "select agent.signal_event($1::int8, $2, $3::text::json)", identity, name, text
            )
            kept.result = {"answer": answer or "unknown"}
        return answer

    async def look(self, identity: int) -> None:
        """Keep that somebody looks at an event's payload."""
        async with self.actions.keeping("look at payload", f"event {identity}"):
            pass


async def _step(calls: Calls, verb: Verb, ids: Sequence[int], reason: str | None) -> dict[int, str]:
    arguments = (list(ids),) if verb == "retry" else (list(ids), reason)
    return {row["id"]: row["answer"] for row in await calls.fetch(_STEPS[verb], *arguments)}


def _tally(answers: Mapping[int, str]) -> dict[str, Any]:
    return dict(Counter(answers.values()))


def _place(page: _Page) -> dict[str, Any]:
    """Return how far a change came that looks for its events; nothing of another one."""
    place: dict[str, Any] = {"looked": page.looked} if page.looked else {}
    return place | ({"next": cursor_after(asdict(page.next))} if page.next else {})


def _given(which: Filter | Narrow) -> dict[str, Any]:
    """Return the fields of a filter that were given."""
    return {name: _plain(value) for name, value in asdict(which).items() if value}


def _with(answer: str, answers: Mapping[int, str]) -> list[int]:
    return [identity for identity, given in answers.items() if given == answer]


def _reason(reason: str | None) -> dict[str, Any]:
    return {} if reason is None else {"reason": reason}


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value

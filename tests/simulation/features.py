"""What programs and operators do besides storing single events. Each feature says what it promises.

A feature has kinds of its own and their handlers, does something at each post of its name, and judges at the end what
history has of its kinds. What can be seen while handlers run, they say themselves. See docs/reliability.md.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from surelane.events import Event, Inserted
from surelane.jobs import Continuation, Job, OnDuplicate
from surelane.queue import Queue
from surelane_dev.testing.fleets.virtual import EPOCH
from surelane_dev.testing.fleets.wire import Host
from surelane_service.engine import Engine
from surelane_worker.handling.context import Context
from surelane_worker.handling.outcomes import Discard, FanOut
from tests.simulation.plan import GROUPS, Post, team_of
from tests.simulation.witness import work

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

MINUTE = timedelta(minutes=1)
GRACE = 20.0
"""Seconds: longer than an attempt goes on that was asked to be cancelled."""
LATE = 75.0
"""Seconds: longer than the longest pause between two sweeps, which end what is past its deadline."""
On = Callable[..., Callable[[Any], Any]]
Row = Any


class Feature:
    """A feature in one simulation."""

    kinds: ClassVar[tuple[str, ...]]

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet, self.witness = fleet, fleet.witness

    def handle(self, on: On, host: Host, random: Random) -> None:
        """Register the handlers of a worker."""

    async def use(self, post: Post) -> None:
        """Do what programs and operators do."""

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        """Yield what history has of its kinds, and must not have."""
        yield from (row["item_key"] for row in rows if row["outcome"] != "completed")

    def job(self, kind: str, key: str, post: Post, **given: Any) -> Job:
        """Return a job of the post's group, which says its key and the team that it belongs to."""
        group = None if post.group is None else f"{kind}:{post.group}"
        payload = {"team_id": team_of(post.group), "said": key, **given.pop("payload", {})}
        return Job(kind, payload, group_key=group, item_key=given.pop("item_key", key), **given)

    async def enqueue(self, *jobs: Job, on_duplicate: OnDuplicate = "skip") -> list[Inserted]:
        """Enqueue jobs in one transaction, again and again until there is an answer."""

        def send(queue: Queue) -> Awaitable[list[Inserted]]:
            self.fleet.sends.update(job.item_key for job in jobs if job.item_key)
            return queue.enqueue_many(jobs, on_duplicate=on_duplicate)

        stored: list[Inserted] = await self.fleet.again(send)
        self.fleet.acknowledged |= {job.item_key for job in jobs if job.item_key}
        return stored

    async def ended(self, key: str) -> Row:
        """Wait until an event is in history."""
        rows: list[Row] = []
        while not rows:
            await asyncio.sleep(2)
            rows = await self.fleet.database.see("select * from agent.event_hist where item_key = $1", key)
        return rows[0]


class Deadlines(Feature):
    """What has not begun by its deadline expires, with the next sweep, unless its kind is paused."""

    kinds = ("hasty",)

    def __init__(self, fleet: "Fleet") -> None:
        super().__init__(fleet)
        self.done: set[str] = set()

    def handle(self, on: On, host: Host, random: Random) -> None:
        @on("hasty")
        async def hasty(event: Event, _: Context) -> None:
            late = self.witness.begin(event).claimed - event.payload["until"] - self.pause("hasty")
            if late > LATE and self.witness.is_well(host.name) and not self.witness.backwards:
                self.witness.breaks("nothing begins long after its deadline", f"{event.key}: {late:.0f} s")
            async with self.witness.seen(host, event):
                await work(random)
            if self.witness.is_well(host.name) and not self.fleet.plan.network.lost_request:
                self.done.add(event.key)

    def pause(self, kind: str) -> float:
        """Return for how many seconds a kind was paused."""
        spans = self.witness.paused[kind]
        return sum(min(ends, self.fleet.server_now()) - since for since, ends in spans)

    async def use(self, post: Post) -> None:
        until = self.fleet.server_now() + (1 + 40 * post.size if post.again else 600)
        at = self.fleet.at(20 * post.size) if post.number % 2 else None
        due = datetime.fromtimestamp(EPOCH + until, UTC)
        await self.enqueue(
            self.job("hasty", post.key, post, payload={"until": until}, deadline=due, run_at=at)
        )

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        for row in rows:
            if row["outcome"] == "expired":
                ended = row["finished_at"].timestamp() - EPOCH
                if row["reason"] != "deadline_passed" or row["finished_at"] < row["deadline"]:
                    yield f"{row['item_key']} expired too early"
                if row["item_key"] in self.done and not self.witness.ill:
                    yield f"{row['item_key']} expired while it ran"
                if any(since + 1 < ended < ends for since, ends in self.witness.paused["hasty"]):
                    yield f"{row['item_key']} expired while its kind was paused"
            elif row["outcome"] != "completed":
                yield row["item_key"]


class Schedules(Feature):
    """A schedule fires once for each due time; of those that were missed, once for as many as ``catch_up`` says."""

    kinds = ("tick",)
    catch_up: str | int = "none"

    def handle(self, on: On, host: Host, random: Random) -> None:
        @on("tick")
        async def tick(event: Event, _: Context) -> None:
            async with self.witness.seen(host, event):
                await work(random)

    async def use(self, post: Post) -> None:
        if self.catch_up != "none":
            return
        self.catch_up = ("one", "all", 2)[post.number % 3]
        first = self.fleet.at(0).replace(second=0, microsecond=0) - int(4 * post.size) * MINUTE
        given = {"kind": "tick", "schedule": "* * * * *", "next_at": first, "catch_up": self.catch_up}
        await self.fleet.again(lambda _: _true(Engine(self.fleet.wire()).set_cron("every", **given)))

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        firings: dict[datetime, list[datetime]] = defaultdict(list)
        for row in rows:
            time = row["item_key"].removeprefix("cron:every:").replace("Z", "+00:00")
            firings[row["enqueued_at"]].append(datetime.fromisoformat(time))
        last: datetime | None = None
        for at, times in sorted((at, sorted(times)) for at, times in firings.items()):
            due = 10_000 if last is None else (times[-1] - last) // MINUTE
            most = {"all": 10_000, "one": 1}.get(str(self.catch_up), 2)
            if (
                any(later - earlier != MINUTE for earlier, later in pairwise(times))
                or times[-1] > at
                or times[-1].second
            ):
                yield f"it fired for {times} at {at}"
            if last is not None and len(times) != min(due, most):
                yield f"it fired {len(times)} times at {at}, {due} minutes after {last}"
            if at - times[-1] > MINUTE + timedelta(seconds=30):
                yield f"it fired late, for {times[-1]} at {at}"
            last = times[-1]


class Workflows(Feature):
    """A continuation runs once all its children have ended, and fails with one of them if it is to."""

    kinds = ("plan", "part", "join")

    def handle(self, on: On, host: Host, random: Random) -> None:
        @on("plan")
        async def plan(event: Event, _: Context) -> FanOut:
            async with self.witness.seen(host, event):
                await work(random)
            return FanOut(*self.family(event, event.payload["parts"], event.payload["fails"]))

        @on("part")
        async def part(event: Event, _: Context) -> Discard | None:
            async with self.witness.seen(host, event):
                await work(random)
                if random.random() < 0.2:
                    raise ValueError("flaky")
            return Discard("no") if event.payload["fails"] else None

        @on("join")
        async def join(event: Event, _: Context) -> None:
            live = "select from agent.event where continuation_id = $1"
            if await self.fleet.database.see(live, event.id) and not self.witness.forgot:
                self.witness.breaks("a continuation comes after its children", event.key)
            async with self.witness.seen(host, event):
                await work(random)

    def family(self, event: Event, parts: int, fails: bool) -> tuple[list[Job], Continuation]:
        """Return the children and the continuation of a workflow. Some of them belong to another team."""
        key, group = event.key, event.group_key
        children = [
            self.job(
                "part",
                f"{key}-{nth}",
                Post(0, 0, "plan", GROUPS[nth % 3], False, 0),
                payload={"fails": fails and nth == 1},
            )
            for nth in range(parts)
        ]
        joined = {"said": f"{key}-join", "team_id": "T1", "fails": fails}
        then = Continuation(
            "join", joined, group_key=group, item_key=f"{key}-join", fails_with_children=fails
        )
        return children, then

    async def use(self, post: Post) -> None:
        payload = {"parts": 2 + int(4 * post.size), "fails": post.again}
        await self.enqueue(self.job("plan", post.key, post, payload=payload))

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        found = {row["item_key"]: row for row in rows}
        for key, row in found.items():
            if row["kind"] == "plan" and row["outcome"] == "completed" and f"{key}-join" not in found:
                yield f"{key} has no continuation"
            expected = "failed" if row["reason"] in ("no", "child_failed") else "completed"
            if row["outcome"] != expected:
                yield key
        for key, row in found.items():
            plan = key.removesuffix("-join")
            fails = any(
                each["outcome"] == "failed"
                for name, each in found.items()
                if name.startswith(f"{plan}-") and name != key
            )
            if row["kind"] == "join" and row["outcome"] != ("failed" if fails else "completed"):
                yield f"{key} is {row['outcome']}"


class Cancels(Feature):
    """What was cancelled does not begin any longer, and what runs meanwhile ends within its grace."""

    kinds = ("doomed",)
    live = "select id, kind, item_key from agent.event where kind = any($1) and hashtext(item_key) % 2 = 0 order by id"

    def handle(self, on: On, host: Host, random: Random) -> None:
        @on("doomed")
        async def doomed(event: Event, ctx: Context) -> None:
            async with self.witness.seen(host, event):
                await work(random)
                if random.random() < 0.5:
                    await ctx.sleep(f"{random.randint(1, 9)}s", blocking=random.random() < 0.5)
                await work(random)

    async def use(self, post: Post) -> None:
        keys = [f"{post.key}-{nth}" for nth in range(2 + int(3 * post.size))]
        await self.enqueue(*(self.job("doomed", key, post) for key in keys))
        await asyncio.sleep(12 * post.size)
        if post.again:
            kinds = [kind for kind in ("doomed", "chat") if kind in self.fleet.feature_kinds]
            there = {row["id"]: row["item_key"] for row in await self.fleet.database.see(self.live, kinds)}
            answers = await self.fleet.again(partial(self._cancel_many, list(there)))
            for row in answers:
                self._told(there[row["id"]], row["answer"])
        else:
            self._told(keys[0], await self.fleet.again(lambda queue: _or_gone(queue.cancel(keys[0]))))

    async def _cancel_many(self, ids: list[int], _: Queue) -> Any:
        return await self.fleet.database.see("select * from agent.cancel_jobs($1::int8[], 'somebody')", ids)

    def _told(self, key: str, answer: str) -> None:
        self.fleet.log(f"to cancel {key} is answered {answer}")
        if answer in ("cancelled", "running"):
            self.witness.cancelled.setdefault(
                key, self.fleet.loop.now + (GRACE if answer == "running" else 0)
            )

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        for row in rows:
            allowed = (
                ("completed", "cancelled") if row["item_key"] in self.witness.cancelled else ("completed",)
            )
            if row["outcome"] not in allowed and not self.witness.forgot:
                yield row["item_key"]


class Chats(Feature):
    """Quick messages that one run got end with it, every attempt of it gets the same ones, and none is in two runs."""

    kinds = ("chat",)

    def __init__(self, fleet: "Fleet") -> None:
        super().__init__(fleet)
        self.runs: dict[str, list[str]] = {}

    def handle(self, on: On, host: Host, random: Random) -> None:
        @on("chat", debounce="2s")
        async def chat(events: list[Event], ctx: Context) -> None:
            keys = [event.key for event in events]
            if self.runs.setdefault(keys[0], keys) != keys and not self.witness.forgot:
                self.witness.breaks(
                    "every attempt gets the same messages", f"{self.runs[keys[0]]}, then {keys}"
                )
            async with self.witness.seen(host, events[0]):
                await work(random)
                if random.random() < 0.3:
                    raise ValueError("flaky")
                if random.random() < 0.5:
                    await ctx.sleep(f"{random.randint(1, 5)}s", blocking=random.random() < 0.5)

    async def use(self, post: Post) -> None:
        for nth in range(2 + int(3 * post.size)):
            await self.enqueue(self.job("chat", f"{post.key}-{nth}", post))
            await asyncio.sleep(2 * post.size)

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        for row in rows:
            key, into = row["item_key"], (row["reason"] or "").removeprefix("coalesced into ")
            if row["outcome"] == "cancelled" and key in self.witness.cancelled:
                continue
            if row["outcome"] != "completed":
                yield key
            elif not self.witness.forgot and key not in self.runs.get(into or key, ()):
                yield f"{key} ended with {into or 'a run of its own'}, which did not get it"
            elif not (into or self.witness.ill) and any(key in keys[1:] for keys in self.runs.values()):
                yield f"{key} ended with a run of its own, after another had got it"


class Merged(Feature):
    """Of jobs that replace each other the one that runs has the newest payload, and of those that do not the first."""

    kinds = ("merged",)

    def __init__(self, fleet: "Fleet") -> None:
        super().__init__(fleet)
        self.newest: dict[int, tuple[str, int]] = {}

    def handle(self, on: On, host: Host, random: Random) -> None:
        @on("merged")
        async def merged(event: Event, _: Context) -> None:
            mode, nth = self.newest.get(event.id, ("", 0))
            given = event.payload["nth"]
            if not self.witness.forgot and (
                given < nth if mode == "replace" else given > nth and mode == "skip"
            ):
                self.witness.breaks(
                    "a replaced job has the newest payload", f"{event.id} has {given}, not {nth}"
                )
            async with self.witness.seen(host, event):
                await work(random)

    async def use(self, post: Post) -> None:
        mode: OnDuplicate = ("replace", "skip", "earliest")[post.number % 3]
        for nth in range(4):
            at = self.fleet.at((8 - 2 * nth) * (1 + post.size))
            job = self.job(
                "merged", post.key, post, payload={"nth": nth}, dedupe_key=post.key, item_key=None, run_at=at
            )
            (stored,) = await self.enqueue(job, on_duplicate=mode)
            self.fleet.acknowledged.add(str(stored.id))
            if mode == "replace" or stored.id not in self.newest:
                self.newest[stored.id] = mode, nth
            await asyncio.sleep(4 * post.size)


class Ranked(Feature):
    """Priorities change no order within a group, and a batch keeps its order."""

    kinds = ("ranked",)

    def handle(self, on: On, host: Host, random: Random) -> None:
        @on("ranked")
        async def ranked(event: Event, _: Context) -> None:
            async with self.witness.seen(host, event):
                await work(random)
                if random.random() < 0.2:
                    self.witness.fails(event)
                    raise ValueError("flaky")

    async def use(self, post: Post) -> None:
        priorities = Random(post.size).sample((0, 1, 2, 3), 3)
        await self.enqueue(
            *(
                self.job("ranked", f"{post.key}-{nth}", post, priority=each)
                for nth, each in enumerate(priorities)
            )
        )


class Reruns(Feature):
    """An event that runs again runs no step that it keeps, also where the run is itself run again."""

    kinds = ("again",)

    def __init__(self, fleet: "Fleet") -> None:
        super().__init__(fleet)
        self.allowed: set[int] = set()

    def handle(self, on: On, host: Host, random: Random) -> None:
        @on("again")
        async def again(event: Event, ctx: Context) -> Discard | None:
            async with self.witness.seen(host, event):
                await self.witness.step(host, event, ctx, "first", random)
                if event.id not in self.allowed:
                    return Discard("not yet")
                await self.witness.step(host, event, ctx, "second", random)
            return None

    async def use(self, post: Post) -> None:
        await self.enqueue(self.job("again", post.key, post))
        row = await self.ended(post.key)
        self.allowed.add(row["id"])
        self.witness.reran.add(post.key)
        await self.fleet.database.see("select agent.rerun_events(array[$1::int8])", row["id"])
        for _ in range(int(3 * post.size)):
            row = await self.ended(row["item_key"])
            query = "select * from agent.rerun_as_new($1, 'second', null)"
            (answer,) = await self.fleet.database.see(query, row["id"])
            if answer["answer"] != "rerun":
                return
            self.allowed.add(answer["rerun"])
            self.witness.stored |= {(answer["key"], step) for step in answer["steps"]}
            row = {"item_key": answer["key"]}

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        for row in rows:
            if row["outcome"] != "completed" and not self.witness.forgot:
                yield row["item_key"]


class Pauses(Feature):
    """Events of a paused kind do not begin."""

    kinds = ()

    async def use(self, post: Post) -> None:
        kinds = sorted({"hasty", "ranked", "merged", "chat"} & self.fleet.feature_kinds)
        if not kinds:
            return
        kind = kinds[int(post.size * len(kinds))]
        excused, paused = self.witness.excused[kind], self.witness.paused[kind]
        if paused and paused[-1][1] == inf:
            return
        excused.append((self.fleet.server_now(), inf))
        await self._decide("select agent.pause_kind($1)", kind)
        paused.append((self.fleet.server_now(), inf))
        self.fleet.log(f"{kind} is paused")
        await asyncio.sleep(90 if post.again else 15 * post.size)
        paused[-1] = paused[-1][0], self.fleet.server_now()
        await self._decide("select agent.resume_kind($1)", kind)
        self.fleet.log(f"{kind} is resumed")
        excused[-1] = excused[-1][0], self.fleet.server_now()
        self.fleet.disturb()

    async def _decide(self, query: str, kind: str) -> None:
        await self.fleet.again(lambda _: _true(self.fleet.database.see(query, kind)))


async def _true(call: Awaitable[Any]) -> bool:
    await call
    return True


async def _or_gone(call: Awaitable[str | None]) -> str:
    answer = await call or "gone"
    if answer == "busy":
        raise TimeoutError
    return answer


FEATURES: dict[str, type[Feature]] = {
    (each.kinds or ("pauses",))[0]: each
    for each in (Deadlines, Schedules, Workflows, Cancels, Chats, Merged, Ranked, Reruns, Pauses)
}

"""What programs and operators do besides storing single events. Each feature says what it promises.

A feature has kinds of its own and their handlers, does something at each post of its name, and judges at the end what
history has of its kinds. What can be seen while handlers run, they say themselves. See docs/reliability.md.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import asyncpg

from surelane.errors import OutcomeUnknown
from surelane.events import Event, Inserted
from surelane.jobs import Continuation, Job, OnDuplicate
from surelane.queue import Queue
from surelane_dev.testing.fleets.virtual import EPOCH
from surelane_dev.testing.fleets.wire import FaultRates, Host
from surelane_service.cron import CatchUp
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


@dataclass(frozen=True)
class Attempt:
    """An attempt of a handler. ``given``: all events that it got."""

    host: Host
    event: Event
    given: Sequence[Event]
    ctx: Context
    random: Random


class Feature:
    """A feature in one simulation."""

    kinds: ClassVar[tuple[str, ...]]
    bounds: ClassVar[dict[str, Any]] = {}
    """Of its handlers."""
    flaky: ClassVar[float] = 0.0
    """The share of attempts that fail."""

    def __init__(self, fleet: "Fleet") -> None:
        self.fleet, self.witness = fleet, fleet.witness
        self.noted: dict[Any, Any] = {}

    def handle(self, on: On, host: Host, random: Random) -> None:
        """Register the handlers of a worker."""
        if not self.kinds:
            return

        @on(*self.kinds, **self.bounds)
        async def handler(given: Any, ctx: Context) -> Any:
            events = given if isinstance(given, list) else [given]
            attempt = Attempt(host, events[0], events, ctx, random)
            if self.witness.is_well(host.name) and not self.witness.forgot:
                await self.begins(attempt)
            async with self.witness.seen(host, events[0]):
                await work(random)
                if random.random() < self.flaky:
                    self.witness.fails(events[0])
                    raise ValueError("flaky")
                return await self.run(attempt)

    async def begins(self, attempt: Attempt) -> None:
        """Check that an event may begin."""

    async def run(self, attempt: Attempt) -> Any:
        """Do what a handler does after its work, and return its outcome."""

    async def use(self, post: Post) -> None:
        """Do what programs and operators do."""

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        """Yield what history has of its kinds, and must not have. All end as completed."""
        yield from (row["item_key"] for row in rows if row["outcome"] != "completed")

    def job(self, kind: str, key: str, post: Post, **given: Any) -> Job:
        """Return a job of the post's group, which says its key and the team that it belongs to."""
        group = None if post.group is None else f"{'jobs' if post.number % 2 else kind}:{post.group}"
        payload = {"team_id": team_of(post.group), "said": key, **given.pop("payload", {})}
        return Job(kind, payload, group_key=group, item_key=given.pop("item_key", key), **given)

    async def enqueue(self, *jobs: Job, on_duplicate: OnDuplicate = "skip") -> list[Inserted]:
        """Enqueue jobs in one transaction, again and again until there is an answer."""
        keys = [job.item_key for job in jobs if job.item_key]

        def send(queue: Queue) -> Awaitable[list[Inserted]]:
            self.fleet.sends.update(keys)
            return queue.enqueue_many(jobs, on_duplicate=on_duplicate)

        stored: list[Inserted] = await self.fleet.again(send)
        self.fleet.acknowledged |= {*keys}
        return stored


class Deadlines(Feature):
    """What has not begun by its deadline expires, with the next sweep, unless its kind is paused."""

    kinds = ("hasty",)

    async def begins(self, attempt: Attempt) -> None:
        paused = sum(
            min(ends, self.fleet.server_now()) - since for since, ends in self.witness.paused["hasty"]
        )
        late = self.witness.begin(attempt.event).claimed - attempt.event.payload["until"] - paused
        if late > LATE and not self.witness.backwards:
            self.witness.breaks(
                "nothing begins long after its deadline", f"{attempt.event.key}: {late:.0f} s"
            )

    async def run(self, attempt: Attempt) -> None:
        if self.fleet.plan.network == FaultRates():
            self.noted[attempt.event.key] = "it ran to its end"

    async def use(self, post: Post) -> None:
        until = self.fleet.server_now() + (1 + 40 * post.size if post.again else 600)
        at = self.fleet.at(20 * post.size) if post.number % 2 else None
        due = datetime.fromtimestamp(EPOCH + until, UTC)
        await self.enqueue(
            self.job("hasty", post.key, post, payload={"until": until}, deadline=due, run_at=at)
        )

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        yield from super().wrong([row for row in rows if row["outcome"] != "expired"])
        for row in [row for row in rows if row["outcome"] == "expired"]:
            ended = row["finished_at"].timestamp() - EPOCH
            if row["reason"] != "deadline_passed" or row["finished_at"] < row["deadline"]:
                yield f"{row['item_key']} expired too early"
            if row["item_key"] in self.noted and not self.witness.ill:
                yield f"{row['item_key']} expired, and {self.noted[row['item_key']]}"
            if any(since + 1 < ended < ends for since, ends in self.witness.paused["hasty"]):
                yield f"{row['item_key']} expired while its kind was paused"


class Schedules(Feature):
    """A schedule fires once for each due time; of the missed times, ``catch_up`` says how many still fire."""

    kinds = ("tick",)
    catch_up: CatchUp = "none"

    async def use(self, post: Post) -> None:
        if self.catch_up != "none":
            return
        self.catch_up = ("one", "all", 2)[post.number % 3]
        first = self.fleet.at(0).replace(second=0, microsecond=0) - int(4 * post.size) * MINUTE
        await self.fleet.again(partial(self._declare, first))
        await asyncio.sleep(75)  # nothing ends before it has fired at a time to come

    async def _declare(self, first: datetime, _: Queue) -> bool:
        schedules = Engine(self.fleet.wire())
        await schedules.set_cron(
            "every", kind="tick", schedule="* * * * *", next_at=first, catch_up=self.catch_up
        )
        return True

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
        silent = self.fleet.at(0) - (last or self.fleet.at(-1e6))
        if self.catch_up != "none" and silent > 4 * MINUTE and not self.witness.backwards:
            yield f"it has not fired since {last}"


class Workflows(Feature):
    """A continuation runs once all its children have ended, and fails with one of them if it is to."""

    kinds = ("plan", "part", "join")
    flaky = 0.1

    async def begins(self, attempt: Attempt) -> None:
        event, live = attempt.event, "select from agent.event where continuation_id = $1"
        if event.kind == "join" and await self.fleet.database.see(live, event.id):
            self.witness.breaks("a continuation comes after its children", event.key)

    async def run(self, attempt: Attempt) -> FanOut | Discard | None:
        event = attempt.event
        if event.kind == "part" and event.payload["fails"]:
            return Discard("no")
        return self._fan_out(event) if event.kind == "plan" else None

    def _fan_out(self, event: Event) -> FanOut:
        """Return the children, some of which belong to another team, and the continuation."""
        key, fails = event.key, event.payload["fails"]
        parts = []
        for nth in range(event.payload["parts"]):
            post = Post(0, 0, "part", GROUPS[nth % len(GROUPS)], False, 0)
            parts.append(self.job("part", f"{key}-{nth}", post, payload={"fails": fails and nth == 1}))
        payload = {"said": f"{key}-join", "team_id": "T1"}
        then = Continuation("join", payload, None, group_key=event.group_key, item_key=f"{key}-join")
        return FanOut(parts, replace(then, fails_with_children=fails))

    async def use(self, post: Post) -> None:
        payload = {"parts": 2 + int(4 * post.size), "fails": post.again}
        await self.enqueue(self.job("plan", post.key, post, payload=payload))

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        ended = {row["item_key"]: row["outcome"] for row in rows}
        failing = {row["item_key"].rpartition("-")[0] for row in rows if row["reason"] == "no"}
        for row in rows:
            key, sort = row["item_key"], row["kind"]
            plan = key if sort == "plan" else key.rpartition("-")[0]
            fails = row["reason"] == "no" if sort == "part" else sort == "join" and plan in failing
            # A plan that was sent anew after its end does not start its children again.
            if self.fleet.sends[plan] < 2 and row["outcome"] != ("failed" if fails else "completed"):
                yield f"{key} is {row['outcome']}"
            if f"{plan}-join" not in ended:
                yield f"{plan} has no continuation"


class Cancels(Feature):
    """What was cancelled does not begin any longer, and what runs meanwhile ends within its grace."""

    kinds = ("doomed",)
    live = (
        "select id, item_key from agent.event where kind = any($1) and hashtext(item_key) % 2 = 0 order by id"
    )

    async def run(self, attempt: Attempt) -> None:
        random = attempt.random
        if random.random() < 0.5:
            await attempt.ctx.sleep(f"{random.randint(1, 9)}s", blocking=random.random() < 0.5)
        await work(random)

    async def use(self, post: Post) -> None:
        keys = [f"{post.key}-{nth}" for nth in range(2 + int(3 * post.size))]
        await self.enqueue(*(self.job("doomed", key, post) for key in keys))
        await asyncio.sleep(12 * post.size)
        if post.again:
            kinds = ["doomed", *({"chat"} & self.fleet.feature_kinds)]
            there = {row["id"]: row["item_key"] for row in await self.fleet.database.see(self.live, kinds)}
            many = "select * from agent.cancel_jobs($1::int8[], 'somebody')"
            for row in await self.fleet.again(lambda _: self.fleet.database.see(many, list(there))):
                self._told(there[row["id"]], row["answer"])
        else:
            self._told(keys[0], await self.fleet.again(partial(self._cancel, keys[0])))

    async def _cancel(self, key: str, queue: Queue) -> str | None:
        try:
            answer = await queue.cancel(key) or "gone"
        except OutcomeUnknown:
            self.noted[key] = "perhaps cancelled"  # by the next call it may have ended
            raise
        return None if answer == "busy" else answer

    def _told(self, key: str, answer: str) -> None:
        self.fleet.log(f"to cancel {key} is answered {answer}")
        if answer in ("cancelled", "running"):
            grace = GRACE if answer == "running" else 0
            self.witness.cancelled.setdefault(key, self.fleet.loop.now + grace)

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        cancelled = self.witness.cancelled.keys() | self.noted.keys()
        yield from super().wrong(
            [row for row in rows if row["outcome"] != "cancelled" or row["item_key"] not in cancelled]
        )


class Chats(Feature):
    """Quick messages that one run got end with it, every attempt of it gets the same ones, and none is in two runs."""

    kinds = ("chat",)
    bounds: ClassVar = {"debounce": "2s"}

    async def begins(self, attempt: Attempt) -> None:
        keys = [each.key for each in attempt.given]
        noted = self.noted.setdefault(keys[0], keys)
        if [key for key in noted if key in keys or key not in self.witness.cancelled] != keys:
            self.witness.breaks("every attempt gets the same messages", f"{noted}, then {keys}")

    async def run(self, attempt: Attempt) -> None:
        random = attempt.random
        if random.random() < 0.3:
            raise ValueError("flaky")
        if random.random() < 0.5:
            await attempt.ctx.sleep(f"{random.randint(1, 5)}s", blocking=random.random() < 0.5)

    async def use(self, post: Post) -> None:
        for nth in range(2 + int(3 * post.size)):
            await self.enqueue(self.job("chat", f"{post.key}-{nth}", post))
            await asyncio.sleep(2 * post.size)

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        for row in rows:
            key, into = row["item_key"], (row["reason"] or "").removeprefix("coalesced into ")
            if row["outcome"] != "completed" and key not in self.witness.cancelled:
                yield key
            elif self.witness.ill or row["outcome"] != "completed":
                continue  # a run of a host that was ill was not seen
            elif key not in self.noted.get(into or key, ()):
                yield f"{key} ended with {into or 'a run of its own'}, which did not get it"
            elif not into and any(key in keys[1:] for keys in self.noted.values()):
                yield f"{key} ended with a run of its own, after another had got it"


class Merged(Feature):
    """Jobs that replace each other: the newest payload runs. Other jobs with one key: the first payload runs."""

    kinds = ("merged",)

    async def begins(self, attempt: Attempt) -> None:
        mode, nth = self.noted.get(attempt.event.id, ("", 0))
        there = attempt.event.payload["nth"]
        if there < nth if mode == "replace" else there > nth and mode == "skip":
            self.witness.breaks(
                "a replaced job has the newest payload", f"{attempt.event.id} has {there}, not {nth}"
            )

    async def use(self, post: Post) -> None:
        mode: OnDuplicate = ("replace", "skip", "earliest")[post.number % 3]
        for nth in range(4):
            at = self.fleet.at((8 - 2 * nth) * (1 + post.size))
            given = {"dedupe_key": post.key, "item_key": None, "run_at": at}
            job = self.job("merged", post.key, post, payload={"nth": nth}, **given)
            (stored,) = await self.enqueue(job, on_duplicate=mode)
            self.fleet.acknowledged.add(str(stored.id))
            if mode == "replace" or stored.id not in self.noted:
                self.noted[stored.id] = mode, nth
            await asyncio.sleep(4 * post.size)


class Ranked(Feature):
    """Priorities change no order within a group, and a batch keeps its order."""

    kinds = ("ranked",)
    flaky = 0.2

    async def use(self, post: Post) -> None:
        ranks = enumerate(Random(post.size).sample((0, 1, 2, 3), 3))
        await self.enqueue(
            *(self.job("ranked", f"{post.key}-{nth}", post, priority=rank) for nth, rank in ranks)
        )


class Reruns(Feature):
    """An event that runs again runs no step that it keeps, also where the run is itself run again."""

    kinds = ("again",)
    known = """
    select id, true as ended from agent.event_hist where item_key = $1
    union all select id, false from agent.event where item_key = $1 order by ended desc
    """

    async def run(self, attempt: Attempt) -> Discard | None:
        step = partial(self.witness.step, attempt.host, attempt.event, attempt.ctx, random=attempt.random)
        await step("first")
        if attempt.event.id not in self.noted:
            return Discard("not yet")
        await step("second")
        return None

    async def use(self, post: Post) -> None:
        await self.enqueue(self.job("again", post.key, post))
        self.witness.reran.add(key := post.key)
        if (identity := await self._ended(key)) is None:
            return
        self.noted[identity] = True
        rerun = "select agent.rerun_events(array[$1::int8])"
        await self.fleet.again(lambda _: self.fleet.database.see(rerun, identity))
        for _ in range(int(3 * post.size)):
            query = "select * from agent.rerun_as_new($1, 'second', null)"
            if (identity := await self._ended(key)) is None:
                return
            try:
                (answer,) = await self.fleet.database.see(query, identity)
            except asyncpg.LockNotAvailableError:
                return  # a foreign transaction has what it needs
            if answer["answer"] != "rerun":
                return
            key = answer["key"]
            self.noted[answer["rerun"]] = True
            self.witness.stored |= {(key, step) for step in answer["steps"]}

    def wrong(self, rows: Sequence[Row]) -> Iterator[str]:
        """One that was sent anew after its end is another event, and is not run again."""
        return super().wrong([row for row in rows if self.fleet.sends[row["item_key"]] < 2])

    async def _ended(self, key: str) -> int | None:
        """Wait until an event is in history, and return its id. ``None``: a failover has lost it."""
        while True:
            await asyncio.sleep(2)
            rows = await self.fleet.database.see(self.known, key)
            if not rows or rows[0]["ended"]:
                return int(rows[0]["id"]) if rows else None


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
        feature = self.fleet.features[kind]
        await feature.use(replace(post, kind=kind, number=post.number + 1000))
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


FEATURES: dict[str, type[Feature]] = {
    (each.kinds or ("pauses",))[0]: each
    for each in (Deadlines, Schedules, Workflows, Cancels, Chats, Merged, Ranked, Reruns, Pauses)
}

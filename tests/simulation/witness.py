"""What handlers do in a simulation, and what they see of each other, from outside of the queue."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations
from math import inf
from random import Random
from typing import Any

from surelane.events import Event
from surelane_dev.testing.fleets.virtual import EPOCH
from surelane_dev.testing.fleets.wire import Host
from surelane_worker.handling.bounds import Limit
from surelane_worker.handling.context import Context
from surelane_worker.handling.registry import Handlers
from tests.simulation.plan import Version

RATE, PERIOD = 2, timedelta(seconds=5)
"""How many events of the kind ``paced`` may begin in a period."""
CHOICES = ("yes", "no", "later")
"""How questions can be answered."""
Run = tuple[str, str]
"""A host, and the key of the event that it runs."""


class BrokenError(Exception):
    """A promise was broken. ``promise``: which one."""

    def __init__(self, promise: str, how: str) -> None:
        super().__init__(f"{promise}: {how}")
        self.promise = promise


@dataclass(frozen=True)
class Begin:
    """An event whose handler began. Times are seconds since the simulation began."""

    happened: float
    id: int
    key: str
    began: float
    claimed: float
    """By the server's clock."""


class Witness:
    """What the handlers of all hosts did."""

    def __init__(
        self, seed: int, now: Callable[[], float], log: Callable[[str], None], sends: Mapping[str, int]
    ) -> None:
        """``sends``: how often each job was sent. A job that is sent anew after its end is another event."""
        self.seed, self.now, self.log, self.sends = seed, now, log, sends
        self.lease = 0.0
        self.ill: dict[str, float] = {}
        """Until when each host counts as ill: others may have taken over what it runs."""
        self.versions: Callable[[], list[Version]] = list
        """Returns what the workers that run were deployed as."""
        self.running: dict[str, set[Run]] = defaultdict(set)
        """What runs now in each group."""
        self.limited: dict[str, set[Run]] = defaultdict(set)
        """What runs now under each limit."""
        self.busy: dict[str, int] = defaultdict(int)
        """How many handlers run on each host."""
        self.ended: dict[str, float] = {}
        """When the last handler ended on each host."""
        self.began: dict[str, list[Begin]] = defaultdict(list)
        """The events of each group, as their handlers began."""
        self.retrying: dict[str, dict[str, Begin]] = defaultdict(dict)
        """The events of each group that wait for their next attempt, with the last one."""
        self.blocked: dict[str, float] = {}
        """When, by the server's clock, each event was claimed that sleeps and then still leads its group."""
        self.stored: set[tuple[str, str]] = set()
        """The steps whose results came back to their handlers, by the event's key and the step's name."""
        self.asked: set[str] = set()
        """The events whose questions were posted."""
        self.posted = Counter[str]()
        """How often each question was posted by hosts that were well."""
        self.answers: dict[str, str] = {}
        """What each question's handler was told."""
        self.forgot = False
        """Whether a standby took over that may not know which messages were being posted."""
        self.locked: set[int] = set()
        """Events that another transaction has locked: claims pass over them."""
        self.ids: dict[str, int] = {}
        """The event that ran last under each key."""
        self.backwards: list[float] = []
        """When the server's clock went back."""
        self.excused: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """When, by the server's clock, each kind held up no other kind: it was paused, or had no worker."""
        self.paused: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """When, by the server's clock, each kind was known to be paused."""
        self.held: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """When, by the server's clock, each workspace was held because it moves, and nothing of it ran."""
        self.cancelled: dict[str, float] = {}
        """From when on each event must not begin, because it was cancelled."""
        self.claims: dict[int, float] = {}
        """When, by the server's clock, each event was claimed last by a host that was well."""
        self.reran: set[str] = set()
        """The events that run again under their ids after they have ended."""
        self.broken: list[BrokenError] = []
        """The promises that are broken."""

    def is_well(self, host: str) -> bool:
        return self.ill.get(host, 0.0) < self.now()

    def idle_for(self, host: str) -> float:
        """Return for how many seconds a host has run no handler."""
        return 0.0 if self.busy[host] else self.now() - self.ended.get(host, 0.0)

    def handlers(self, host: Host, version: Version, kinds: Collection[str]) -> Handlers:  # noqa: C901 - one after another
        """Return the handlers of a worker."""
        handlers = Handlers()
        random = Random(f"{host.name} {self.seed}")

        def on(kind: str, **bounds: Any) -> Callable[[Any], Any]:
            handled = kind.removeprefix("slack.") in kinds
            return handlers.on(kind, **bounds) if handled else lambda handler: handler

        @on("slack.plain")
        @on("later")
        async def plain(event: Event, _: Context) -> None:
            async with self.seen(host, event):
                await work(random)

        @on("slack.flaky")
        async def flaky(event: Event, _: Context) -> None:
            async with self.seen(host, event):
                await work(random)
                if random.random() < 0.5:
                    self.fails(event)
                    raise ValueError("flaky")

        @on("slack.few", limit=Limit(concurrency=version.few))
        async def few(event: Event, _: Context) -> None:
            async with self.seen(host, event), self._counted(host, event, "few", None):
                await work(random)

        @on("keyed", limit=Limit(concurrency=1, per=lambda payload: payload["lane"]))
        async def keyed(event: Event, _: Context) -> None:
            async with self.seen(host, event), self._counted(host, event, event.payload["lane"], 1):
                await asyncio.sleep(random.uniform(1, 8))

        @on("slack.paced", limit=Limit(rate=f"{RATE}/{PERIOD.total_seconds():g}s"))
        async def paced(event: Event, _: Context) -> None:
            async with self.seen(host, event):
                await work(random)

        @on("slack.steps")
        async def steps(event: Event, ctx: Context) -> None:
            async with self.seen(host, event):
                for nth in range(3):
                    await self.step(host, event, ctx, f"step {nth}", random)

        @on("slack.waits")
        async def waits(event: Event, ctx: Context) -> None:
            async with self.seen(host, event):
                await self.step(host, event, ctx, "before", random)
                seconds, blocking = random.randint(1, 20), random.random() < 0.5
                if blocking:
                    self.blocked.setdefault(event.key, self.begin(event).claimed)
                await ctx.sleep(f"{seconds}s", blocking=blocking)
                await self.step(host, event, ctx, "after", random)

        @on("slack.asks")
        async def asks(event: Event, ctx: Context) -> None:
            async with self.seen(host, event):
                await self.step(host, event, ctx, "before", random)
                if await ctx.wait_for("go") != event.key:
                    self.breaks("a wait gets what was sent to it", event.key)
                await self.step(host, event, ctx, "after", random)

        @on("slack.questions")
        async def asks_people(event: Event, ctx: Context) -> None:
            async with self.seen(host, event):
                answer = await ctx.ask(event, "Which?", CHOICES, channel="C1")
                self._learns(host, event.key, "" if answer is None else answer.choice)
                await self.step(host, event, ctx, "after", random)

        if version.spare:

            @on("slack.spare")
            async def spare(event: Event, _: Context) -> None:
                async with self.seen(host, event):
                    await work(random)

        return handlers

    def took_over(self, stored: set[tuple[str, str]]) -> None:
        """Forget what a standby that took over may not know."""
        self.forgot = True
        self.stored &= stored
        self.posted.clear()
        self.answers.clear()
        self.retrying.clear()

    def went_back(self, to: float) -> None:
        """Note that the server's clock goes back."""
        self.backwards.append(self.now())
        for spans in self.excused.values():
            spans[:] = [(min(since, to) if ends == inf else since, ends) for since, ends in spans]

    def check(self) -> None:
        """Check the order of each group, and raise what was broken.

        Raises:
            BrokenError: the first promise that was broken.
        """
        if self.broken:
            raise self.broken[0]
        for group, began in self.began.items():
            first: dict[int, Begin] = {}
            for each in began:
                first.setdefault(each.id, each)  # one that began before may run again at any time
            for early, late in combinations(first.values(), 2):
                if (
                    late.happened < early.happened
                    and late.id < early.id
                    and not self._excuses(late, early, late.happened)
                ):
                    raise BrokenError("order in a group", f"in {group} {early.key} began before {late.key}")

    def _excuses(self, late: Begin, early: Begin, since: float) -> bool:
        """Return whether ``early`` may begin before ``late``, although it happened after it.

        ``since``: when it was last decided, by the server's clock, which of them leads their group.
        """
        back = any(late.happened <= moment <= early.began for moment in self.backwards)
        return back or late.id in self.locked or self._holds_up_none(late.key, since, early)

    def _holds_up_none(self, key: str, since: float, other: Begin) -> bool:
        return any(
            begins <= other.claimed + 1 and ends >= min(since, other.claimed) - 1
            for begins, ends in self.excused[key.partition("-")[0]]
        )

    def breaks(self, promise: str, how: str) -> None:
        """Note that a promise is broken."""
        self.broken.append(BrokenError(promise, how))

    async def step(self, host: Host, event: Event, ctx: Context, name: str, random: Random) -> None:
        """Run a step, which must not have been stored before."""

        async def stepped() -> None:
            if (event.key, name) in self.stored and self.sends.get(event.key, 1) == 1:
                self.breaks("a stored step is not run again", f"{name} of {event.key}")
            await work(random)

        await ctx.step(name, stepped)
        if host.alive:
            self.stored.add((event.key, name))

    def asks(self, host: Host, key: str) -> None:
        """Note that a host posts a question."""
        self.log(f"{host.name} posts the question of {key}")
        self.asked.add(key)
        self.posted[key] += self.is_well(host.name)
        if self.posted[key] > 1 and not self.may_repeat(key):
            self.breaks("a question is posted once", key)

    def may_repeat(self, key: str) -> bool:
        """Return whether another transaction may have kept an event's row from the note of what is posted."""
        return self.ids.get(key) in self.locked

    def _learns(self, host: Host, key: str, choice: str) -> None:
        """Note what a handler is told. Later clicks must not change it for its next attempts."""
        if key not in self.asked or choice not in CHOICES:
            self.breaks("a question is posted, and answered", f"{key} got {choice!r}")
        if host.alive and self.answers.setdefault(key, choice) != choice:
            self.breaks("an answer stays", f"{key} got {self.answers[key]!r}, then {choice!r}")

    @asynccontextmanager
    async def seen(self, host: Host, event: Event) -> AsyncIterator[None]:
        """Note that a handler runs, and beside which others of its group."""
        group, me = event.group_key, (host.name, event.key)
        self.log(f"{host.name} begins {event.id} {event.key} of {group}, attempt {event.attempts}")
        self.busy[host.name] += 1
        self.ids[event.key] = event.id
        self._may_begin(host, event)
        try:
            if group is None:
                yield
                return
            self._begins(host, event, group)
            self.running[group].add(me)
            try:
                yield
            finally:
                self.running[group].discard(me)
        finally:
            self.busy[host.name] -= 1
            self.ended[host.name] = self.now()

    def _may_begin(self, host: Host, event: Event) -> None:
        if not self.is_well(host.name) or self.forgot:
            return
        claimed = self.claims[event.id] = self.begin(event).claimed
        if self.now() > self.cancelled.get(event.key, inf):
            self.breaks("what was cancelled does not begin", event.key)
        if not self.backwards and any(since < claimed < ends for since, ends in self.paused[event.kind]):
            self.breaks("what is paused does not begin", event.key)
        held = self.held[(event.payload or {}).get("team_id") or ""]
        if not self.backwards and any(since < claimed < ends for since, ends in held):
            self.breaks("what is held does not begin", event.key)

    def fails(self, event: Event) -> None:
        """Note that an attempt fails, and that its event waits for the next one."""
        if event.group_key is not None:
            self.retrying[event.group_key][event.key] = self.begin(event)

    def _begins(self, host: Host, event: Event, group: str) -> None:
        me = host.name, event.key
        others = self.running[group] - {me}
        if others and sum(self.is_well(each) for each, _ in (*others, me)) > len(others):
            self.breaks("one hand per group", f"{me} runs beside {sorted(others)} in {group}")
        begin = self.begin(event)
        self.retrying[group].pop(event.key, None)
        for retry in self.retrying[group].values():
            later = retry.happened < begin.happened and self.is_well(host.name)
            if later and not self._excuses(retry, begin, self.blocked.get(begin.key, begin.claimed)):
                self.breaks("a retry comes first", f"{event.key} began before {retry.key} in {group}")
        if event.kind.startswith("slack.") or event.kind in ("keyed", "ranked"):
            self.began[group].append(begin)

    def begin(self, event: Event) -> Begin:
        """Return an event as it begins now."""
        claimed = event.vt.timestamp() - EPOCH - self.lease
        return Begin(event.event_ts.timestamp() - EPOCH, event.id, event.key, self.now(), claimed)

    @asynccontextmanager
    async def _counted(self, host: Host, event: Event, key: str, most: int | None) -> AsyncIterator[None]:
        """Note that a handler of a limited kind runs."""
        me, runs = (host.name, event.key), self.limited[key]
        runs.add(me)
        most = max(version.few for version in self.versions()) if most is None else most
        if sum(self.is_well(each) for each, _ in runs) > most:
            self.breaks("limits are never exceeded", f"more than {most} of {key} run: {sorted(runs)}")
        try:
            yield
        finally:
            runs.discard(me)


async def work(random: Random) -> None:
    """Take some time."""
    await asyncio.sleep(random.choice((0.0, 0.05, 0.5, random.uniform(0, 8))))

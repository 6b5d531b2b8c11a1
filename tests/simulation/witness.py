"""What handlers do in a simulation, and what they see of each other, from outside of the queue."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from random import Random

from surelane.events import Event
from surelane_worker.handling.bounds import Limit
from surelane_worker.handling.context import Context
from surelane_worker.handling.registry import Handlers
from tests.simulation.wire import Host

AT_ONCE = 2
"""The limit of the kind ``few``."""
Run = tuple[str, str]
"""A host, and the key of the event that it runs."""


class BrokenError(Exception):
    """A promise was broken."""


@dataclass(eq=False)
class Witness:
    """What the handlers of all hosts did. ``is_well``: whether no other host can have taken over what a host runs."""

    random: Random
    is_well: Callable[[str], bool]
    log: Callable[[str], None]
    running: dict[str, set[Run]] = field(default_factory=lambda: defaultdict(set))
    """What runs now in each group."""
    few: set[Run] = field(default_factory=set)
    """What runs now of the limited kind."""
    began: dict[str, list[tuple[datetime, int]]] = field(default_factory=lambda: defaultdict(list))
    """The time and id of the events of each group, as their handlers began."""
    stored: set[tuple[str, str]] = field(default_factory=set)
    """The steps whose results came back to their handlers, by the event's key and the step's name."""
    broken: list[str] = field(default_factory=list)
    """The promises that are broken."""

    def handlers(self, host: Host) -> Handlers:
        """Return the handlers of a worker."""
        handlers = Handlers()

        @handlers.on("slack.plain")
        async def plain(event: Event, _: Context) -> None:
            async with self._seen(host, event):
                await self._work()

        @handlers.on("slack.flaky")
        async def flaky(event: Event, _: Context) -> None:
            async with self._seen(host, event):
                await self._work()
                if self.random.random() < 0.3:
                    raise ValueError("flaky")

        @handlers.on("slack.few", limit=Limit(concurrency=AT_ONCE))
        async def few(event: Event, _: Context) -> None:
            async with self._seen(host, event), self._counted(host, event):
                await self._work()

        @handlers.on("slack.steps")
        async def steps(event: Event, ctx: Context) -> None:
            async with self._seen(host, event):
                for nth in range(3):
                    await self._step(host, event, ctx, f"step {nth}")

        @handlers.on("slack.waits")
        async def waits(event: Event, ctx: Context) -> None:
            async with self._seen(host, event):
                await self._step(host, event, ctx, "before")
                await ctx.sleep(f"{self.random.randint(1, 20)}s", blocking=self.random.random() < 0.5)
                await self._step(host, event, ctx, "after")

        return handlers

    async def _work(self) -> None:
        await asyncio.sleep(self.random.choice((0.0, 0.05, 0.5, self.random.uniform(0, 8))))

    async def _step(self, host: Host, event: Event, ctx: Context, name: str) -> None:
        await ctx.step(name, self._stepped, event.key, name)
        if host.alive:
            self.stored.add((event.key, name))

    async def _stepped(self, key: str, name: str) -> None:
        if (key, name) in self.stored:
            self.broken.append(f"{name} of {key} runs again, though its result was stored")
        await self._work()

    @asynccontextmanager
    async def _seen(self, host: Host, event: Event) -> AsyncIterator[None]:
        """Note that a handler runs, and beside which others of its group."""
        group, me = event.group_key, (host.name, event.key)
        if group is None:
            yield
            return
        others = self.running[group] - {me}
        if others and sum(self.is_well(each) for each, _ in (*others, me)) > len(others):
            self.broken.append(f"{event.key} runs on {host.name} beside {sorted(others)} in group {group}")
        self.log(f"{host.name} begins {event.id} {event.key} of {group}, attempt {event.attempts}")
        self.began[group].append((event.event_ts, event.id))
        self.running[group].add(me)
        try:
            yield
        finally:
            self.running[group].discard(me)

    @asynccontextmanager
    async def _counted(self, host: Host, event: Event) -> AsyncIterator[None]:
        """Note that a handler of the limited kind runs."""
        me = host.name, event.key
        self.few.add(me)
        if sum(self.is_well(each) for each, _ in self.few) > AT_ONCE:
            self.broken.append(f"more than {AT_ONCE} run at once: {sorted(self.few)}")
        try:
            yield
        finally:
            self.few.discard(me)

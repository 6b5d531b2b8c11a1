"""Keep a service running: start it again when it dies, and replace it when its code changes.

A replacement loses nothing. The new process starts beside the old one; once it is ready, the old one gets SIGTERM and
drains. If the new one cannot start, the old one stays.
"""

import asyncio
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

import aiohttp

from surelane.errors import SurelaneError
from surelane_dev.output import Output
from surelane_dev.ports import Front
from surelane_dev.processes import ChildProcess
from surelane_service.lifecycle import EXIT_SETTINGS

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds before a process that died starts again: the first, doubled each time it dies soon, and the longest."""
STEADY = 60.0
"""Seconds after which a process counts as one that did not die soon."""


PATIENCE = 10.0  # seconds


class ServiceError(SurelaneError):
    """A process ended that cannot be started again."""


@dataclass(frozen=True)
class Start:
    """How to start a process: its whole environment, and the URL that answers 200 when it can work."""

    environment: Mapping[str, str]
    ready: str


@dataclass(eq=False)
class Supervisor:
    """Keep one service running."""

    name: str
    """The service's, one of ``program.MODULES``."""
    before: Mapping[str, str]
    """The environment of a spare, which has no secret that the service must not have."""
    within: float
    """Seconds until a process that got SIGTERM is killed."""
    output: Output
    news: asyncio.Event
    """Is set when a process of it is ready, or did not start."""
    front: Front | None = None
    """The port that stays when the process changes."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it runs, or when it did not start."""
    problem: str | None = None
    """Why no process of it runs, although it was started."""
    _last: str = ""
    _spare: ChildProcess | None = None
    _child: ChildProcess | None = None
    _how: Start | None = None
    _running: set[ChildProcess] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _files: list[str] = field(default_factory=list)
    _retiring: set[asyncio.Task[int]] = field(default_factory=set)

    @property
    def runs(self) -> bool:
        """Whether a process of it has been ready, and runs."""
        return self._child is not None and self._child.exit_code is None

    async def prepare(self) -> None:
        """Start a spare process, unless there is one."""
        if self._spare is None or self._spare.exit_code is not None:
            command = (sys.executable, "-m", "surelane_dev.program", self.name)
            env = {**self.before, "PYTHONUNBUFFERED": "1"}
            self._spare = await ChildProcess.start(self.name, *command, env=env, on_line=self._show, fed=True)

    def _show(self, line: str) -> None:
        self._last = line if line.strip() else self._last
        self.output.of(self.name)(line)

    def _failed(self) -> str:
        """Note why it did not start: the last line that it wrote."""
        why = self.output.readable(self._last).strip().splitlines()
        self.problem = why[-1].strip().rstrip(".") if why else "it wrote nothing"
        self.settled.set()
        self.news.set()
        return self.problem

    def changed(self, files: list[str]) -> None:
        """Replace the process, because these files changed."""
        self._files = files
        self._changed.set()

    async def run(self, start: Callable[[], Start], *, watched: bool) -> None:
        """Keep it running until this is cancelled. ``start`` returns how to start the next process.

        ``watched``: changes of its code are reported, so code that cannot be used is worth a wait, and no ServiceError.
        """
        pause = FIRST_PAUSE
        while True:
            self._changed.clear()
            began, files, self._files = time.monotonic(), self._files, []
            try:
                how = start()
            except SurelaneError as error:
                self._last = str(error)
                await self._stay()
                continue
            child = await self._begin(how)
            if await self._came_up(child, how):
                await self._replace(child, how)
                if files:
                    took = time.monotonic() - began
                    self.output.say(f"{self.name} reloaded in {took:.1f} s: {', '.join(files[:3])}")
                self.problem = None
                self.settled.set()
                self.news.set()
                if watched:
                    await self.prepare()
                await self._end_or_change(child)
            if self._changed.is_set():
                if child is not self._child:
                    self._retire(child)
                continue
            code = await child.wait()
            self._running.discard(child)
            if code == EXIT_SETTINGS:
                await self._stay(watched=watched)
                continue
            why = "" if child is self._child else f": {self._failed()}"
            pause = FIRST_PAUSE if time.monotonic() - began > STEADY else pause
            self.output.say(f"{self.name} ended with code {code}{why}; it starts again in {pause:g} s")
            await self._pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def stop(self) -> None:
        """Stop every process of it. Let those that run drain."""
        if self._spare is not None:
            self._spare.kill()
            await self._spare.wait()
        for child in list(self._running):
            self._retire(child)
        await asyncio.gather(*self._retiring)

    async def _begin(self, how: Start) -> ChildProcess:
        await self.prepare()
        child, self._spare = self._spare, None
        assert child is not None  # noqa: S101 - it was just prepared
        self._running.add(child)
        child.feed(json.dumps(dict(how.environment)))
        return child

    async def _came_up(self, child: ChildProcess, how: Start) -> bool:
        """Wait until a process is ready, ends, or is out of date. Return whether it is ready."""
        waiting = asyncio.create_task(_ready(self.name, how, self.output.say))
        try:
            await self._end_or_change(child, waiting)
            return waiting.done() and child.exit_code is None
        finally:
            waiting.cancel()

    async def _end_or_change(self, child: ChildProcess, *others: "asyncio.Task[None]") -> None:
        """Wait until a process ends, its code changes, or another task ends."""
        waits = {asyncio.create_task(child.wait()), asyncio.create_task(self._changed.wait())}
        try:
            await asyncio.wait(waits.union(others), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _stay(self, *, watched: bool = True) -> None:
        """Wait for other code, with the old process if there is one. Raises ServiceError: its code is not watched."""
        if not watched:
            raise ServiceError(f"{self.name} did not start: {self._failed()}; ending the rest")
        old = self._child if self._child is not None and self._child.exit_code is None else None
        stays = "the earlier code stays in use" if old else "nothing runs"
        self.output.say(f"{self.name} did not start: {self._failed()}; {stays} until you save a change")
        await self.prepare()
        if old is not None:
            await self._end_or_change(old)
        await self._changed.wait()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _replace(self, child: ChildProcess, how: Start) -> None:
        """Make this process the current one, and wait until the old one takes no more."""
        old, before = self._child, self._how
        self._child, self._how = child, how
        if self.front is not None:
            self.front.behind = how.ready
        if old is not None and before is not None and old.exit_code is None:
            self._retire(old)
            await asyncio.sleep(0)  # the signal is sent
            await _unready(before)

    def _retire(self, child: ChildProcess) -> None:
        """Let a process drain in the background."""
        self._running.discard(child)
        task = asyncio.create_task(child.stop(signal.SIGTERM, self.within))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


async def _ready(name: str, start: Start, say: Callable[[str], None]) -> None:
    """Wait until a service is ready. If that takes long, say once which service it is."""
    impatient = time.monotonic() + PATIENCE
    async with aiohttp.ClientSession() as session:
        while not await _answers(session, start.ready):
            if time.monotonic() > impatient:
                say(f"waiting for the {name}; {start.ready} says what it waits for")
                impatient = math.inf
            await asyncio.sleep(0.05)


async def _unready(start: Start) -> None:
    """Wait until a service that got SIGTERM says that it takes no more, but not for one that hangs."""
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
            while await _answers(session, start.ready):  # noqa: ASYNC110 - another process has no event
                await asyncio.sleep(0.02)


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == HTTPStatus.OK
    except aiohttp.ClientError:
        return False

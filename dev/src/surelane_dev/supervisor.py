"""Keep a program of services running: start it again when it dies, and replace it when its code changes.

A replacement loses nothing. The new process starts beside the old one; once its worker is ready, the old one hands the
simulator over, gets SIGTERM and drains. If the new one cannot start, the old one stays.
"""

import asyncio
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from surelane.errors import SurelaneError
from surelane_dev.output import Output
from surelane_dev.ports import Front
from surelane_dev.processes import ChildProcess
from surelane_service.lifecycle import EXIT_SETTINGS

WORKER, SIMULATOR = "worker", "simulator"
SERVICES = (WORKER, SIMULATOR, "ingest", "operator")
"""OpenTelemetry's global providers are those of the first one in a process."""
HANDED_OVER = "surelane_dev.program: handed over"
"""The line that a program writes then, for its supervisor alone."""
REFUSED = "surelane_dev.program: no worker"
"""The line after the reason why a worker did not start, where the other services of its program run."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds before a process that died starts again: the first, doubled each time it dies soon, and the longest."""
STEADY = 60.0
"""Seconds after which a process counts as one that did not die soon."""

PATIENCE = 10.0  # seconds
ANSWERS = 1.0
"""Seconds to wait for an answer about readiness. Before its services begin, a program accepts no connections."""
HANDS_OVER = 3.0
"""Seconds in which a process hands its simulator over. If a handler blocks it, it is killed then."""
UNUSABLE = "settings cannot be used:"
"""How :func:`load_settings` begins."""


class ServiceError(SurelaneError):
    """A process ended that cannot be started again."""


@dataclass(frozen=True)
class Start:
    """How to start a service: its whole environment, and the URL that answers 200 when it can work."""

    environment: Mapping[str, str]
    ready: str


@dataclass(eq=False)
class Supervisor:
    """Keep one program running."""

    name: str
    """The service's. A program of several has its worker's, which runs the team's code."""
    services: Collection[str]
    """The services that it runs."""
    before: Mapping[str, str]
    """The environment of a spare, which has no secret that the service must not have."""
    within: float
    """Seconds until a process that got SIGTERM is killed."""
    output: Output
    news: asyncio.Event
    """Is set when a process of it is ready, or did not start."""
    front: Front | None = None
    """The worker's port that stays when the process changes."""
    sockets: Collection[int] = ()
    """Descriptors of the listening sockets that every process of it has: these ports stay, too."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it runs, or when it did not start."""
    problem: str | None = None
    """Why no process of it runs, although it was started."""
    _last: str = ""
    _refused: str | None = None
    """Why the program that runs has no worker."""
    _spare: ChildProcess | None = None
    _child: ChildProcess | None = None
    _how: Mapping[str, Start] = field(default_factory=dict)
    _handed: asyncio.Event = field(default_factory=asyncio.Event)
    _running: set[ChildProcess] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _files: list[str] = field(default_factory=list)
    _retiring: set[asyncio.Task[int]] = field(default_factory=set)

    @property
    def runs(self) -> bool:
        """Whether a process of it has been ready, and runs, with its worker."""
        return self._child is not None and self._child.exit_code is None and self._refused is None

    async def prepare(self) -> None:
        """Start a spare process, unless there is one."""
        if self._spare is None or self._spare.exit_code is not None:
            command = (sys.executable, "-m", "surelane_dev.program", *self.services)
            env = {**self.before, "PYTHONUNBUFFERED": "1"}
            self._spare = await ChildProcess.start(
                self.name, *command, env=env, on_line=self._show, fed=True, passed=self.sockets
            )

    def _show(self, line: str) -> None:
        if line == HANDED_OVER:
            self._handed.set()
            return
        if line == REFUSED:
            self._refused = self._last
            return
        if line.startswith("  ") and self._last.startswith(UNUSABLE):  # a line for each setting
            self._last += f"{'' if self._last == UNUSABLE else ';'} {line.strip()}"
        elif line.strip():
            self._last = line
        self.output.of(self.name)(line)

    def _settle(self, took: float, files: list[str]) -> None:
        """Say that it runs, or that it lacks its worker."""
        if self._refused is not None:
            self._tell_failure("no message is answered", self._refused)
            return
        if files and self.runs:
            self.output.say(f"{self.name} reloaded in {took:.1f} s: {', '.join(files[:3])}")
        self.problem = None
        self.settled.set()
        self.news.set()

    def _tell_failure(self, stays: str, line: str) -> None:
        self.output.say(f"{self.name} did not start: {self._failed(line)}; {stays} until you save a change")

    def _failed(self, line: str | None = None) -> str:
        """Note why it did not start: the last line that it wrote, or this one."""
        why = self.output.readable(line or self._last).strip().splitlines()
        self.problem = why[-1].strip().rstrip(".") if why else "it wrote nothing"
        self.settled.set()
        self.news.set()
        return self.problem

    def changed(self, files: list[str]) -> None:
        """Replace the process, because these files changed."""
        self._files = files
        self._changed.set()

    async def run(self, start: Callable[[], Mapping[str, Start]], *, watched: bool) -> None:
        """Keep it running until this is cancelled. ``start`` returns how to start each service of the next process.

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
            # Its port is its own, or it only keeps the simulator's page.
            if self._child is not None and (self.front is None or self._refused is not None):
                await self._child.stop(signal.SIGTERM, self.within)
                self._running.discard(self._child)
            whole = not (self.runs and len(how) > 1)
            child = await self._begin(how, whole=whole, stays=watched and whole and len(how) > 1)
            if await self._came_up(child, how if whole else {WORKER: how[WORKER]}):
                await self._replace(child, how, whole=whole)
                self._settle(time.monotonic() - began, files)
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

    async def _begin(self, how: Mapping[str, Start], *, whole: bool, stays: bool) -> ChildProcess:
        """Start a process: the ``whole`` program, or to begin with all but the simulator.

        ``stays``: the other services stay up where the worker's code cannot be used.
        """
        await self.prepare()
        child, self._spare, self._refused = self._spare, None, None
        assert child is not None  # noqa: S101 - it was just prepared
        self._running.add(child)
        environments = {name: dict(each.environment) for name, each in how.items()}
        given = {"environments": environments, "sockets": list(self.sockets), "whole": whole}
        child.feed(json.dumps(given | {"stays": stays}))
        return child

    async def _came_up(self, child: ChildProcess, how: Mapping[str, Start]) -> bool:
        """Wait until these services of a process are ready, it ends, or is out of date. Return whether it is ready."""
        waiting = asyncio.create_task(self._ready(how))
        try:
            await self._end_or_change(child, waiting)
            return waiting.done() and child.exit_code is None
        finally:
            waiting.cancel()

    async def _ready(self, how: Mapping[str, Start]) -> None:
        """Wait until services are ready, but not for a refused worker. If it takes long, say once which one it is."""
        impatient = time.monotonic() + PATIENCE
        for name, start in how.items():
            while (why := await asyncio.to_thread(_why_unready, start.ready)) is not None:
                if name == WORKER and self._refused is not None:
                    break
                if time.monotonic() > impatient:
                    self.output.say(f"waiting for the {name}: {why}")
                    impatient = math.inf
                await asyncio.sleep(0.03)

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
        stays = "the earlier code stays in use" if self.runs else "no message is answered"
        self._tell_failure(stays, self._last)
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

    async def _replace(self, child: ChildProcess, how: Mapping[str, Start], *, whole: bool) -> None:
        """Make this process the current one, and wait until the old one takes no more."""
        old, before = self._child, self._how
        self._child, self._how = child, how
        if self.front is not None:
            self.front.behind = how[WORKER].ready
        if not whole and old is not None:
            await self._hand_over(old)
            child.tell(signal.SIGUSR1)
            await self._came_up(child, {SIMULATOR: how[SIMULATOR]})
        if old is not None and old.exit_code is None:
            self._retire(old)
            await asyncio.sleep(0)  # the signal is sent
            if WORKER in before:
                await _unready(before[WORKER])

    async def _hand_over(self, old: ChildProcess) -> None:
        """Let a process end its simulator. If it does not, a handler blocks its event loop: kill it."""
        self._handed.clear()
        old.tell(signal.SIGUSR2)
        handed = asyncio.create_task(self._handed.wait())
        ended = asyncio.create_task(old.wait())
        await asyncio.wait({handed, ended}, timeout=HANDS_OVER, return_when=asyncio.FIRST_COMPLETED)
        if not handed.done() and not ended.done():
            self.output.say(f"the earlier code does not answer within {HANDS_OVER:g} s: it is killed")
            old.kill()
            await ended
        handed.cancel()
        ended.cancel()

    def _retire(self, child: ChildProcess) -> None:
        """Let a process drain in the background."""
        self._running.discard(child)
        task = asyncio.create_task(child.stop(signal.SIGTERM, self.within))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


async def _unready(start: Start) -> None:
    """Wait until a service that got SIGTERM says that it takes no more, but not for one that hangs."""
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while await asyncio.to_thread(_why_unready, start.ready) is None:  # noqa: ASYNC110 - another process has no event
                await asyncio.sleep(0.02)


def show_problem(simulator: str, missing: Mapping[str, str]) -> None:
    """Show on the simulator's page which services did not start, and why."""
    text = "; ".join(f"The {name} did not start: {why}" for name, why in missing.items())
    _asked("PUT", f"{simulator}/control/problem", {"text": text})


def _why_unready(url: str) -> str | None:
    return _asked("GET", url)


def _asked(method: str, url: str, body: Mapping[str, str] | None = None) -> str | None:
    """Return why a request was not answered with 200."""
    at = urlsplit(url)
    connection = HTTPConnection(at.hostname or "", at.port, timeout=ANSWERS)
    try:
        connection.request(method, at.path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return None if response.status == HTTPStatus.OK else str(json.load(response).get("reason"))
    except (OSError, HTTPException, ValueError):
        return "it does not answer"
    finally:
        connection.close()

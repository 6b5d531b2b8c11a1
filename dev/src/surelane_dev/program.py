"""Run ``python -m surelane_dev.program NAME…``: some of our services as tasks of one process, in two steps.

The first step imports the services' modules, which takes most of the time of a start. The second step begins when
standard input brings the environments as a line of JSON: only then is a team's code imported. A process that waits
between the steps is a spare.

A program that replaces another one begins without a simulator: two would have conversations. SIGUSR2 ends that of the
old one, which then writes :data:`HANDED_OVER`, and SIGUSR1 begins the new one's. The sockets stay open meanwhile.
"""

import asyncio
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any

from surelane.errors import SettingsError
from surelane_dev.supervisor import HANDED_OVER, REFUSED, SIMULATOR, WORKER
from surelane_service import logs, probes, service_settings
from surelane_service.lifecycle import EXIT_OK, Main, run

MODULES = {
    WORKER: "surelane_worker.wiring",
    SIMULATOR: "surelane_dev.simulator.server",
    "ingest": "surelane_ingest.wiring",
    "operator": "surelane_operator.wiring",
}
Environments = Mapping[str, Mapping[str, str]]


def main(*names: str) -> int:
    """Import the services, wait for their environments, and run them. Return the exit code."""
    service_settings.AS_GIVEN.update(os.environ)
    gc.disable()  # a tenth of the time of imports: what they make stays
    mains: dict[str, Main] = {name: importlib.import_module(MODULES[name]).main for name in names}
    gc.freeze()
    gc.enable()
    line = sys.stdin.readline()
    if not line:  # `surelane dev` ended
        return EXIT_OK
    given = json.loads(line)
    for descriptor in given["sockets"]:
        os.set_inheritable(descriptor, False)
        listener = socket.socket(fileno=descriptor)
        probes.OPENED[listener.getsockname()[1]] = listener
    # Python does not notice that a module changed within the second in which it was compiled, if its size is the same.
    sys.dont_write_bytecode = True
    logs.development.on = True
    logs.configure_logs(f"surelane-{names[0]}")  # whose name is on lines of no service
    begins = [name for name in names if given["whole"] or name != SIMULATOR]
    tasks = Tasks(mains, given["environments"], stays=given["stays"])
    return run(partial(tasks.run, begins))


class Tasks:
    """The services as tasks. When one fails, all end. They stay without a worker whose code cannot be used."""

    def __init__(self, mains: Mapping[str, Main], environments: Environments, *, stays: bool) -> None:
        self._mains, self._environments, self._stays = mains, environments, stays
        self._ends = {name: asyncio.Event() for name in mains}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._handing: asyncio.Task[None] | None = None

    async def run(self, begins: list[str], stop: asyncio.Event) -> None:
        """Run until ``stop``. The simulator ends last, so that handlers can finish. Raise the first one's error."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._begin, [SIMULATOR], stop)
        loop.add_signal_handler(signal.SIGUSR2, self._hand_over)
        self._begin(begins, stop)
        await stop.wait()
        await self._end(*self._tasks.keys() - {SIMULATOR})
        await self._end(*self._tasks.keys() & {SIMULATOR})
        for task in self._tasks.values():
            task.result()

    def _begin(self, names: list[str], stop: asyncio.Event) -> None:
        for name in sorted(names, key=lambda name: name != SIMULATOR):
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._one(name, stop), name=name)
        self._restored = asyncio.create_task(self._restore())

    async def _restore(self) -> None:
        """Let the worker's environment be the process's once the others have read theirs: a team's code reads it."""
        await asyncio.sleep(0)
        self._take(next(iter(self._mains)))

    def _take(self, name: str) -> None:
        os.environ.clear()
        os.environ.update(self._environments[name])

    async def _one(self, name: str, stop: asyncio.Event) -> None:
        if name not in (SIMULATOR, WORKER):  # the team's code may be wrong
            await asyncio.sleep(0)
        if stop.is_set():
            return
        self._take(name)  # a service reads its settings before it waits for anything
        try:
            main, ends = self._mains[name], self._ends[name]
            await (_apart(main, ends) if name == SIMULATOR else main(ends))
        except SettingsError as error:
            if error.__cause__ is not None:
                show(error.__cause__)
            if name != WORKER or not self._stays:
                raise
            print(error, REFUSED, sep="\n", flush=True)
            ends.set()
        finally:
            if not self._ends[name].is_set():
                stop.set()

    async def _end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
        if running := [self._tasks[name] for name in names if name in self._tasks]:
            await asyncio.wait(running)

    def _hand_over(self) -> None:
        """End the simulator, which saves its conversations."""
        self._handing = asyncio.create_task(self._end(SIMULATOR))
        self._handing.add_done_callback(lambda _: print(HANDED_OVER, flush=True))


async def _apart(main: Main, ends: asyncio.Event) -> None:
    """Run the simulator in a thread: a team's code may call Slack and block the event loop, also in its imports."""
    loop, stop, began = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def begin() -> None:
        task = asyncio.ensure_future(main(stop))
        await asyncio.sleep(0)
        began.set()  # it has read its settings
        await task

    running = asyncio.get_running_loop().run_in_executor(None, loop.run_until_complete, begin())
    began.wait()
    ending = asyncio.create_task(ends.wait())
    both: set[asyncio.Future[Any]] = {running, ending}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    loop.call_soon_threadsafe(stop.set)
    await running


def show(error: BaseException) -> None:
    """Print an error of a team's module, from the frame of its first line on."""
    printed = traceback.TracebackException(type(error), error, theirs(error.__traceback__))
    print("".join(printed.format()), end="", flush=True)


def theirs(frames: TracebackType | None) -> TracebackType | None:
    """Leave out the frames that lead to the team's code: ours, and those of Python's import."""
    ours = ("surelane_worker.", "surelane_dev.", "importlib")
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith(ours):
        frames = frames.tb_next
    return frames


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

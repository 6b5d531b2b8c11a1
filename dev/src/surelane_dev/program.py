"""Run ``python -m surelane_dev.program NAME``: one of our services, in two steps.

The first step imports the service's modules, which takes most of the time of a start. The second step begins when
standard input brings the environment as a line of JSON: only then is a team's code imported. A process that waits
between the steps is a spare.
"""

import importlib
import json
import os
import sys
import traceback
from asyncio import Event
from types import TracebackType

from surelane.errors import SettingsError
from surelane_service import logs
from surelane_service.lifecycle import EXIT_OK, Main, run

MODULES = {
    "simulator": "surelane_dev.simulator.server",
    "ingest": "surelane_ingest.wiring",
    "operator": "surelane_operator.wiring",
    "worker": "surelane_worker.wiring",
}


def main(name: str) -> int:
    """Import the service, wait for its environment, and run it. Return its exit code."""
    service: Main = importlib.import_module(MODULES[name]).main
    line = sys.stdin.readline()
    if not line:  # `surelane dev` ended
        return EXIT_OK
    os.environ.clear()
    os.environ.update(json.loads(line))
    # Python does not notice that a module changed within the second in which it was compiled, if its size is the same.
    sys.dont_write_bytecode = True
    logs.development.on = True

    async def shown(stop: Event) -> None:
        try:
            await service(stop)
        except SettingsError as error:
            if error.__cause__ is not None:
                show(error.__cause__)
            raise

    return run(shown)


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
    sys.exit(main(sys.argv[1]))

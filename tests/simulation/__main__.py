"""Run simulations: ``python -m tests.simulation --seeds 200``. Each seed that breaks a promise is named.

A seed always repeats the same run: ``--first 17 --seeds 1 --verbose`` shows what happened in the 17th.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile

from tests.databases import MEMORY, Server, memory_is_free, migrated_template, running_server
from tests.mutants.table import MUTANTS
from tests.mutants.tree import copied, environment
from tests.simulation import process

PROCESSES = os.cpu_count() or 1


def main() -> int:
    """Return 1 if a seed broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--shrink", action="store_true", help="show the least that a seed needs to fail")
    parser.add_argument("--seeds", type=int, default=50, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first one (default: %(default)s)")
    parser.add_argument(
        "--verbose", action="store_true", help="show what happens, and after how many seconds"
    )
    parser.add_argument("--trace", action="store_true", help="show each statement with its answer")
    parser.add_argument(
        "--until-broken", action="store_true", help="stop at the first seed that breaks a promise"
    )
    parser.add_argument(
        "--mutant", choices=MUTANTS, metavar="NAME", help="put a fault in, which a seed must find"
    )
    parser.add_argument(
        "--on", nargs=2, metavar=("SERVER", "TEMPLATE"), help="run here, in a copy of a database"
    )
    parser.add_argument("--only", nargs="+", type=int, metavar="SEED", help="the seeds to run here")
    given = parser.parse_args()
    if given.on:
        return process.run(given)
    more = [f"--{each}" for each in ("verbose", "trace", "shrink") if getattr(given, each)]
    if given.mutant:
        again = [*more, "--until-broken", "--first", str(given.first), "--seeds", str(given.seeds)]
        with copied(MUTANTS[given.mutant]) as tree:
            command = [sys.executable, "-m", "tests.simulation", *again]
            return subprocess.run(command, cwd=tree, env=environment(tree), check=False).returncode
    more += ["--until-broken"] if given.until_broken else []
    if "TMPDIR" not in os.environ and memory_is_free():
        os.environ["TMPDIR"], tempfile.tempdir = str(MEMORY), None
    return asyncio.run(_share(range(given.first, given.first + given.seeds), more))


async def _share(seeds: range, more: list[str]) -> int:
    """Let several processes run the seeds, whose clocks are the simulation's. Each has a database of its own."""
    async with running_server() as server, migrated_template(server) as template:
        parts = [seeds[nth::PROCESSES] for nth in range(min(PROCESSES, len(seeds)))]
        processes = [await _started(server, template, part, more) for part in parts]
        codes = []
        for ended in asyncio.as_completed([process.wait() for process in processes]):
            codes.append(await ended)
            if codes[-1] and "--until-broken" in more:
                for other in [process for process in processes if process.returncode is None]:
                    other.send_signal(signal.SIGINT)
        return int(any(codes))


async def _started(
    server: Server, template: str, seeds: range, more: list[str]
) -> asyncio.subprocess.Process:
    own = ["--on", server.admin, template, "--only", *map(str, seeds), *more]
    command = [sys.executable, "-m", "tests.simulation", *own]
    # Sets have the same order in every run.
    return await asyncio.create_subprocess_exec(*command, env={**os.environ, "PYTHONHASHSEED": "0"})


if __name__ == "__main__":
    sys.exit(main())

"""Run simulations: ``python -m tests.simulation --seeds 200``. Each seed that breaks a promise is named.

A seed always repeats the same run: ``--first 17 --seeds 1 --verbose`` shows what happened in the 17th.
"""

import argparse
import asyncio
import logging
import os
import secrets
import sys
import traceback

import structlog

from surelane_dev.accounts import OWNER
from tests.databases import Server, migrated_template, running_server
from tests.simulation.fleet import simulate
from tests.simulation.mutants import MUTANTS
from tests.simulation.virtual import DeadlockError, VirtualLoop, use_virtual_time
from tests.simulation.witness import BrokenError

PROCESSES = os.cpu_count() or 1


def main() -> int:
    """Return 1 if a seed broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first one (default: %(default)s)")
    parser.add_argument(
        "--verbose", action="store_true", help="show what happens, and after how many seconds"
    )
    parser.add_argument(
        "--mutant", choices=sorted(MUTANTS), help="put a defect back, which some seed must find"
    )
    parser.add_argument("--server", help=argparse.SUPPRESS)
    parser.add_argument("--template", help=argparse.SUPPRESS)
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    if given.server:
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(
                logging.INFO if given.verbose else logging.CRITICAL
            )
        )
        return _run(seeds, given)
    return asyncio.run(_share(seeds, sys.argv[1:]))


async def _share(seeds: range, arguments: list[str]) -> int:
    """Start a server, and let several processes run the seeds. Their clocks are the simulation's."""
    async with running_server() as server, migrated_template(server) as template:
        share = -(-len(seeds) // PROCESSES)
        processes = []
        for part in (seeds[begin : begin + share] for begin in range(0, len(seeds), share)):
            own = [
                "--first",
                str(part[0]),
                "--seeds",
                str(len(part)),
                "--server",
                server.admin,
                "--template",
                template,
            ]
            command = [sys.executable, "-m", "tests.simulation", *arguments, *own]
            # Sets have the same order in every run.
            environment = {**os.environ, "PYTHONHASHSEED": "0"}
            processes.append(await asyncio.create_subprocess_exec(*command, env=environment))
        codes = await asyncio.gather(*(process.wait() for process in processes))
    return max(codes)


def _run(seeds: range, given: argparse.Namespace) -> int:
    broken = []
    for seed in seeds:
        if not _holds(seed, given):
            broken.append(seed)
            if given.mutant:
                break  # found
    sys.stdout.write(
        f"seeds {seeds[0]} to {seeds[-1]}: {len(seeds) - len(broken)} held, broken: {broken or 'none'}\n"
    )
    return 1 if broken else 0


def _holds(seed: int, given: argparse.Namespace) -> bool:
    server = Server(given.server)
    lines: list[str] = []
    loop = VirtualLoop()
    use_virtual_time(loop)

    async def run() -> None:
        name = f"surelane_simulation_{secrets.token_hex(6)}"
        with loop.real():
            await server.execute(
                f"create database {name} owner {OWNER} template {given.template} strategy file_copy"
            )
        try:
            log = print if given.verbose else lines.append
            await simulate(seed, server.admin, name, log, MUTANTS.get(given.mutant))
        finally:
            with loop.real():
                await server.execute(f"drop database if exists {name} with (force)")

    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())
    except (BrokenError, DeadlockError) as error:
        sys.stdout.write(f"seed {seed}: {error}\n")
    except Exception:  # noqa: BLE001 - the other seeds run
        sys.stdout.write("\n".join([f"seed {seed}:", *lines[-20:], traceback.format_exc()]))
    else:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())

"""Run some seeds one after another, in a process whose clocks are the simulation's."""

import asyncio
import gc
import logging
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress

import structlog

from surelane_dev.testing.fleets.virtual import StuckError, VirtualLoop, virtual_time
from surelane_worker.wiring import YOUNG
from tests.simulation.database import Database
from tests.simulation.fleet import simulate
from tests.simulation.plan import Plan, shrunk
from tests.simulation.witness import BrokenError


def run(given: Namespace) -> int:
    """Return 1 if a seed broke a promise."""
    level = logging.INFO if given.verbose else logging.CRITICAL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    loop = VirtualLoop()
    with virtual_time(loop), suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(_run(given))
    return 0  # another process has found one


async def _run(given: Namespace) -> int:
    async with Database.opened(*given.on) as database:
        database.trace = _trace if given.trace else None
        return await _try(database, given)


async def _try(database: Database, given: Namespace) -> int:
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
    log: Callable[[str], None] = print if given.verbose else _ignore
    broken = []
    for seed in given.only:
        log(f"seed {seed} begins")
        promise = await _broken(plan := Plan.of(seed), database, log)
        if promise is None:
            continue
        broken.append(seed)
        if given.shrink:

            async def fails(smaller: Plan, promise: str = promise) -> bool:
                return await _broken(smaller, database, _ignore, quiet=True) == promise

            sys.stdout.write(f"seed {seed} needs:\n{await shrunk(plan, fails)}\n")
        if given.until_broken:
            break
    sys.stdout.write(f"{len(given.only)} seeds from {given.only[0]} on: broken: {broken or 'none'}\n")
    return 1 if broken else 0


async def _broken(
    plan: Plan, database: Database, log: Callable[[str], None], *, quiet: bool = False
) -> str | None:
    """Return the promise that a plan breaks, if it does."""
    say: Callable[[str], object] = _ignore if quiet else sys.stdout.write
    try:
        await simulate(plan, database, log)
    except (BrokenError, StuckError) as error:
        say(f"seed {plan.seed}: {error}\n")
        return getattr(error, "promise", "deadlock")
    except Exception as error:  # noqa: BLE001 - the other seeds run
        say(f"seed {plan.seed}:\n{traceback.format_exc()}")
        return type(error).__name__
    return None


def _trace(statement: str) -> None:
    sys.stdout.write(f"statement {statement!r}\n")


def _ignore(_: str) -> None: ...

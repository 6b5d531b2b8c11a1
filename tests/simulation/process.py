"""Run some seeds one after another, in a process whose clocks are the simulation's."""

import argparse
import asyncio
import gc
import logging
import secrets
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tests.simulation.virtual import RUNNING, DeadlockError, VirtualLoop, use_virtual_time


def main() -> int:
    """Return 1 if a seed broke a promise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("template")
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--until-broken", action="store_true")
    given = parser.parse_args()
    use_virtual_time()
    import structlog  # noqa: PLC0415 - after the clocks are the simulation's

    level = logging.INFO if given.verbose else logging.CRITICAL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    loop = VirtualLoop()
    RUNNING[:] = [loop]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(_run(given, loop))


async def _run(given: argparse.Namespace, loop: VirtualLoop) -> int:
    from surelane_dev.accounts import OWNER  # noqa: PLC0415 - after the clocks are the simulation's
    from tests.databases import Server  # noqa: PLC0415 - likewise
    from tests.simulation.database import Database  # noqa: PLC0415 - likewise

    server, name = Server(given.server), f"surelane_simulation_{secrets.token_hex(6)}"
    with loop.real():
        await server.execute(
            f"create database {name} owner {OWNER} template {given.template} strategy file_copy"
        )
    database = Database(given.server, name, loop)
    database.trace = _trace if given.trace else None
    try:
        await database.open(None)
        return await _try(database, given)
    finally:
        await database.close()
        with loop.real():
            await server.execute(f"drop database if exists {name} with (force)")


async def _try(database: Any, given: argparse.Namespace) -> int:
    from surelane_worker.wiring import YOUNG  # noqa: PLC0415 - after the clocks are the simulation's
    from tests.simulation.plan import Plan, shrunk  # noqa: PLC0415 - likewise

    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
    log: Callable[[str], None] = print if given.verbose else _ignore
    broken = []
    for seed in given.seeds:
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
    sys.stdout.write(f"{len(given.seeds)} seeds from {given.seeds[0]} on: broken: {broken or 'none'}\n")
    return 1 if broken else 0


async def _broken(plan: Any, database: Any, log: Callable[[str], None], *, quiet: bool = False) -> str | None:
    """Return the promise that a plan breaks, if it does."""
    from tests.simulation.fleet import simulate  # noqa: PLC0415 - after the clocks are the simulation's
    from tests.simulation.witness import BrokenError  # noqa: PLC0415 - likewise

    say: Callable[[str], object] = _ignore if quiet else sys.stdout.write
    try:
        await simulate(plan, database, log)
    except (BrokenError, DeadlockError) as error:
        say(f"seed {plan.seed}: {error}\n")
        return getattr(error, "promise", "deadlock")
    except Exception as error:  # noqa: BLE001 - the other seeds run
        say(f"seed {plan.seed}:\n{traceback.format_exc()}")
        return type(error).__name__
    return None


def _trace(statement: str) -> None:
    sys.stdout.write(f"statement {statement!r}\n")


def _ignore(_: str) -> None: ...


if __name__ == "__main__":
    sys.exit(main())

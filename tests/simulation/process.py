"""Run some seeds one after another, in a process whose clocks are the simulation's."""

import argparse
import asyncio
import logging
import secrets
import sys
import traceback

from tests.simulation.virtual import RUNNING, DeadlockError, VirtualLoop, use_virtual_time


def main() -> int:
    """Return 1 if a seed broke a promise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("seeds", type=int)
    parser.add_argument("server")
    parser.add_argument("template")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--mutant")
    given = parser.parse_args()
    use_virtual_time()
    import structlog  # noqa: PLC0415 - after the clocks are the simulation's

    level = logging.INFO if given.verbose else logging.CRITICAL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    seeds, broken = range(given.first, given.first + given.seeds), []
    for seed in seeds:
        if not _holds(seed, given):
            broken.append(seed)
            if given.mutant:
                break  # found
    sys.stdout.write(f"seeds {seeds[0]} to {seeds[-1]}: broken: {broken or 'none'}\n")
    return 1 if broken else 0


def _holds(seed: int, given: argparse.Namespace) -> bool:
    from tests.simulation.fleet import in_database  # noqa: PLC0415 - likewise
    from tests.simulation.witness import BrokenError  # noqa: PLC0415 - likewise

    lines: list[str] = []
    loop = VirtualLoop()
    RUNNING[:] = [loop]
    log = print if given.verbose else lines.append
    name = f"surelane_simulation_{secrets.token_hex(6)}"
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(in_database(seed, given.server, given.template, name, log, given.mutant))
    except (BrokenError, DeadlockError) as error:
        sys.stdout.write(f"seed {seed}: {error}\n")
    except Exception:  # noqa: BLE001 - the other seeds run
        sys.stdout.write("\n".join([f"seed {seed}:", *lines[-20:], traceback.format_exc()]))
    else:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())

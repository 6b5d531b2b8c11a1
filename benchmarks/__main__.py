"""Run ``python -m benchmarks``: measure, print, and write one page per benchmark.

``docs/performance/README.md`` is written by hand from what is printed at the end: it also says what a figure means.
"""

import argparse
import asyncio
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks import report
from benchmarks.bench import Bench
from benchmarks.result import Result
from benchmarks.server import migrated_template, running_server

NAMES = (
    "answers",
    "drain",
    "bare",
    "backlog",
    "console",
    "dead_rows",
    "development",
    "durable",
    "encryption",
    "enqueue",
    "held_vacuum",
    "history",
    "latency",
    "fairness",
    "fleet",
    "groups",
    "ingest",
    "kills",
    "limits",
    "memory",
    "pages",
    "statements",
    "tracing",
    "workspaces",
)
DOCS = Path(__file__).resolve().parent.parent / "docs" / "performance"
ROUNDS = 3


def main() -> int:
    """Read the command line and run the benchmarks that it names."""
    arguments = _arguments()
    return asyncio.run(_run(arguments.only or NAMES, arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Run the benchmarks, side by side with peers."
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=NAMES,
        metavar="NAME",
        help=f"one of {', '.join(NAMES)}; may be repeated",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small and short: shows that they work, not how fast the queue is",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"interleaved rounds, of which medians are taken (default {ROUNDS}; quick: 1)",
    )
    parser.add_argument(
        "--output", type=Path, help="where to write (default: docs/performance; quick: nowhere)"
    )
    parser.add_argument(
        "--history", type=int, help="events of history behind `console` (default 1,000,000; quick: 20,000)"
    )
    parser.add_argument(
        "--weeks",
        type=int,
        help="how far that goes back, in chunks of TimescaleDB (default: 90 days in a table)",
    )
    parser.add_argument(
        "--minutes", type=float, help="how long `pages` keeps its pages open (default 10; quick: 0.2)"
    )
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else ROUNDS)
    arguments.output = arguments.output or (None if arguments.quick else DOCS)
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    return arguments


async def _run(names: Sequence[str], arguments: argparse.Namespace) -> int:
    """Run all benchmarks, even if one fails. Return the exit code."""
    results: dict[str, Result] = {}
    async with running_server() as server, migrated_template(server) as template:
        where = await report.circumstances(server)
        given = (arguments.quick, arguments.rounds, arguments.history, arguments.weeks)
        bench = Bench(server, template, *given, minutes=arguments.minutes)
        for name in names:
            print(name, file=sys.stderr, flush=True)
            try:
                results[name] = result = await import_module(f"benchmarks.measures.{name}").measure(bench)
            except Exception:  # noqa: BLE001 - printed, and the exit code says it
                traceback.print_exc()
                continue
            print(f"\n{result.title}\n\n{report.table_text(result.table)}\n", flush=True)
            if arguments.output:
                report.write(arguments.output, name, result, where)
    print(f"{report.summary(results)}\n\n{where}")
    return 0 if len(results) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())

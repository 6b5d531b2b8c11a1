"""Measure the start and the reload of `surelane dev`: all services in one program, beside a process for each."""

import asyncio
import statistics
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import figures
from benchmarks.bench import Bench
from benchmarks.result import Result, Table, Verdict
from dev.tests.system.up import Up, up
from surelane_dev.new import write_project

WAYS = {"one program": (), "--processes": ("--processes",)}
RELOADS = 5
SPARE = 5.0
"""Seconds after which the process that waits for the next save has imported the services."""
CPU, RELOAD = 4.0, 0.5  # seconds
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
"""Compiled modules are kept, as where people develop."""


async def measure(bench: Bench) -> Result:
    """Start a new project in turn both ways, with a database that exists, and save its handlers."""
    found: dict[str, dict[str, list[float]]] = {way: defaultdict(list) for way in WAYS}
    with TemporaryDirectory() as made:
        project = Path(made, "mybot")
        write_project(project)
        async with up(project / ".surelane/postgres", COMPILED, project=project) as first:
            await first.ready()
            await first.end()
        for _ in range(bench.rounds):
            for way, options in WAYS.items():
                await _once(bench, project, options, found[way])
    middle = {way: {name: statistics.median(each) for name, each in found[way].items()} for way in WAYS}
    names = list(middle["one program"])
    rows = [
        (
            name,
            *(f"{middle[way][name]:.2f} s {_range(found[way][name])}" for way in WAYS),
            _ratio(middle, name),
        )
        for name in names
    ]
    ours = middle["one program"]
    return Result(
        title="`surelane dev`",
        how=f"""
            A new project of `surelane new` starts in turn both ways, on a database that exists: {bench.rounds}
            rounds. CPU is that of all processes, PostgreSQL's too, until "Surelane is up". Each start is followed
            by {bench.size(RELOADS, 2)} saves of the handlers, {SPARE:g} s apart. A reload lasts from the save to
            the line that says so.
        """,
        table=Table(("median (range)", *WAYS, "ratio"), rows),
        verdicts=[
            Verdict(f"CPU until it is up ≤ {CPU:g} s", f"{ours['CPU']:.2f} s", ours["CPU"] <= CPU),
            Verdict(f"a reload ≤ {RELOAD:g} s", f"{ours['reload']:.2f} s", ours["reload"] <= RELOAD),
        ],
    )


async def _once(bench: Bench, project: Path, options: tuple[str, ...], into: dict[str, list[float]]) -> None:
    began, handlers = time.perf_counter(), project / "mybot/handlers.py"
    async with up(project / ".surelane/postgres", COMPILED, project=project, options=options) as system:
        await system.ready()
        into["until it is up"].append(time.perf_counter() - began)
        into["CPU"].append(_cpu(system))
        for number in range(bench.size(RELOADS, 2)):
            await asyncio.sleep(SPARE)
            saved = time.perf_counter()
            handlers.write_text(f"{handlers.read_text()}\n")
            await system.shows("worker reloaded in", times=number + 1)
            into["reload"].append(time.perf_counter() - saved)
        await system.end()


def _cpu(system: Up) -> float:
    """Return the processor time of all processes, with those that have ended."""
    return sum(sum(process.cpu_times()[:4]) for process in system.family if process.is_running())


def _range(values: list[float]) -> str:
    return f"({min(values):.2f}…{max(values):.2f})"


def _ratio(middle: dict[str, dict[str, float]], name: str) -> str:
    return figures.ratio(middle["one program"][name] / middle["--processes"][name])

"""Simulate thousands of workspaces on shards: waits, fairness, what an outage loses, connections.

``--check`` runs the services on this machine instead, for a small part of the same load, and prints both beside each
other. ``--measure`` finds the primary's costs on this machine.
"""

import argparse
import asyncio
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks import figures
from benchmarks.plan import CONNECTIONS, OTHERS, Load, Plan, plan
from benchmarks.shards import real
from benchmarks.shards.shape import CEILING, DISABLES, HOUR, Blast, Post, Shape, spread
from benchmarks.shards.shard import Costs, Figures, Outage, Shard

BLAST = Blast(workspace=9, begins=900.0, lasts=300.0, rate=CEILING / 300.0)
"""The tenth largest workspace uses Slack's ceiling of an hour up in five minutes."""
AFTERMATH = 600.0
"""Seconds from the blast's beginning on in which waits count as beside it."""
OUTAGE = Outage(2100.0, HOUR)
SECONDS = 9900.0
"""Until Slack has sent again, with *Delayed Events*, what it posted in the outage."""
WARM = 300.0
"""Seconds until waits count: at first the workers in reserve have found nothing yet."""
SMALL = 0.5
"""Workspaces of the smaller half are the small ones."""
SMALL_ONES, LARGE_ONES, BLASTING = "small", "others", "blasting"
EARLY, BEFORE, BESIDE, AFTER = "early", "before", "beside the blast", "after the outage"


@dataclass(frozen=True)
class Posts:
    """All posts, packed: millions fit."""

    at: "array[float]"
    workspace: "array[int]"
    thread: "array[int]"
    seconds: "array[float]"

    @classmethod
    def of(cls, shape: Shape, seconds: float) -> "Posts":
        """Collect what is posted."""
        posts = cls(array("d"), array("L"), array("q"), array("d"))
        for post in shape.posts(seconds):
            posts.at.append(post.at)
            posts.workspace.append(post.workspace)
            posts.thread.append(post.thread)
            posts.seconds.append(post.seconds)
        return posts

    def on(self, places: Sequence[int], shard: int, until: float = float("inf")) -> Iterator[Post]:
        """Yield those of a shard."""
        for at, workspace, thread, seconds in zip(
            self.at, self.workspace, self.thread, self.seconds, strict=True
        ):
            if at >= until:
                return
            if places[workspace] == shard:
                yield Post(at, workspace, thread, seconds)


@dataclass(frozen=True)
class Fleet:
    """A number of shards, each with what the plan says."""

    shards: int
    each: Plan
    concurrency: int
    places: Sequence[int]
    costs: Costs

    @property
    def connections(self) -> int:
        """What each primary must have."""
        return CONNECTIONS["ingest"] * self.each.ingests + CONNECTIONS["worker"] * self.each.workers + OTHERS

    def shard(
        self,
        number: int,
        workspaces: int,
        outage: Outage | None,
        *,
        delayed: bool = False,
        fair: bool = True,
    ) -> Shard:
        """Return one of them. The first has the outage."""
        small = workspaces * SMALL

        def named(stored: float, workspace: int) -> tuple[str, str]:
            beside = BLAST.begins <= stored < BLAST.begins + AFTERMATH
            calm = BEFORE if stored >= WARM else EARLY
            when = BESIDE if beside else calm if stored < OUTAGE.begins else AFTER
            whose = SMALL_ONES if workspace >= small else LARGE_ONES
            return when, BLASTING if workspace == BLAST.workspace else whose

        return Shard(
            self.each.workers,
            self.concurrency,
            costs=self.costs,
            outage=outage if number == 0 else None,
            delayed=delayed,
            fair=fair,
            named=named,
            seed=number,
        )


def main(given: Sequence[str] | None = None) -> int:
    """Read the command line, and simulate, check or measure."""
    arguments = _parser().parse_args(given)
    if arguments.check or arguments.measure:
        asyncio.run(real.check(arguments.seed) if arguments.check else real.measure())
        return 0
    average = arguments.workspaces * arguments.events_per_minute / 60
    shape = Shape(
        arguments.workspaces, average * arguments.busy, arguments.handler_seconds, BLAST, arguments.seed
    )
    costs = Costs(event=arguments.cost / 2, insert=arguments.cost / 2)
    _say("posts")
    posts, calm = Posts.of(shape, SECONDS), Posts.of(replace(shape, blast=None), BLAST.begins + AFTERMATH)
    rows: list[dict[str, str]] = []
    for shards in arguments.shards:
        rows += _run(_fleet(arguments, shards, shape, costs), shape, posts, calm)
    names = list(rows[0])
    widest = max(map(len, names))
    for name in names:
        print(f"{name:{widest}}" + "".join(f"{row[name]:>26}" for row in rows))
    return 0


def _fleet(arguments: argparse.Namespace, shards: int, shape: Shape, costs: Costs) -> Fleet:
    load = Load(
        arguments.workspaces / shards,
        arguments.events_per_minute,
        handler_seconds=arguments.handler_seconds,
        concurrency=arguments.concurrency,
    )
    return Fleet(shards, plan(load), arguments.concurrency, spread(shape.rates(), shards), costs)


def _run(fleet: Fleet, shape: Shape, posts: Posts, calm: Posts) -> list[dict[str, str]]:
    """Simulate all shards. Then that with the outage with *Delayed Events*, and that with the blast without it."""
    began, all_ = time.perf_counter(), []
    for number in range(fleet.shards):
        shard = fleet.shard(number, shape.workspaces, OUTAGE)
        all_.append(shard.run(posts.on(fleet.places, number)))
        _say(f"{number + 1} of {fleet.shards} shards: {time.perf_counter() - began:.0f} s")
    broken = fleet.shard(0, shape.workspaces, OUTAGE, delayed=True).run(posts.on(fleet.places, 0))
    blasted = fleet.places[BLAST.workspace]
    quiet = fleet.shard(blasted, shape.workspaces, None).run(calm.on(fleet.places, blasted))
    unfair = fleet.shard(blasted, shape.workspaces, None, fair=False)
    by_age = unfair.run(posts.on(fleet.places, blasted, BLAST.begins + AFTERMATH))
    _say(f"{fleet.shards} shards: {time.perf_counter() - began:.0f} s")
    return [
        _row(fleet, each, each[blasted], quiet, by_age, delayed=each[0] is broken)
        for each in (all_, [broken, *all_[1:]])
    ]


def _row(
    fleet: Fleet, all_: list[Figures], blasted: Figures, quiet: Figures, by_age: Figures, *, delayed: bool
) -> dict[str, str]:
    broken = all_[0]
    slots = 60 * fleet.each.workers * fleet.concurrency
    calm = range(int(WARM // 60), int(BLAST.begins // 60))
    p99 = [figures.percentile(each.waits[BESIDE, SMALL_ONES], 0.99) for each in (blasted, quiet)]
    failed = worst_hour(all_)
    return {
        "shards": f"{fleet.shards}{', delayed' if delayed else ''}",
        "ingests, workers a shard": f"{fleet.each.ingests}, {fleet.each.workers}",
        "connections a primary": f"{fleet.connections}",
        "events stored": f"{sum(each.stored for each in all_):,}",
        "wait before: small": _times(all_, BEFORE, SMALL_ONES),
        "wait before: others": _times(all_, BEFORE, LARGE_ONES),
        "beside the blast: small": _times([blasted], BESIDE, SMALL_ONES),
        "others": _times([blasted], BESIDE, LARGE_ONES),
        "blasting": _times([blasted], BESIDE, BLASTING),
        "small, without the blast": _times([quiet], BESIDE, SMALL_ONES),
        "small, claims by age alone": _times([by_age], BESIDE, SMALL_ONES),
        "p99 with and without": f"{p99[0] / p99[1]:.2f}",
        "after the outage: small": _times([broken], AFTER, SMALL_ONES),
        "after the outage: others": _times([broken], AFTER, LARGE_ONES),
        "p99 within 3 s again after": f"{broken.recovered(OUTAGE.ends):,.0f} s",
        "lost at Slack": f"{sum(each.lost for each in all_):,}",
        "stored by a retry": f"{broken.retried:,}",
        "latest after": f"{broken.latest:,.0f} s",
        "run again": f"{broken.repeated:,}",
        "failed in the worst hour": f"{failed:.0%}{' (off)' if failed > DISABLES else ''}",
        "primary busy: before": f"{_share(all_[0].primary, calm, 60):.1%}",
        "busiest minute": f"{max(max(each.primary.values()) for each in all_) / 60:.1%}",
        "claims/s: before": f"{sum(broken.claims[minute] for minute in calm) / len(calm) / 60:.0f}",
        "events/s": f"{sum(broken.answers[True][minute] for minute in calm) / len(calm) / 60:.0f}",
        "busiest minute's": f"{max(max(each.claims.values()) for each in all_) / 60:.0f}",
        "slots busy: before": f"{_share(all_[0].slots, calm, slots):.0%}",
    }


def worst_hour(all_: Sequence[Figures]) -> float:
    """Return the largest part of Slack's requests that failed within an hour, on all shards together."""
    good, bad = (sum((each.answers[well] for each in all_), Counter[int]()) for well in (True, False))
    worst = 0.0
    for first in range(max([*good, *bad], default=0) + 1):
        hour = range(first, first + 60)
        failed, stored = (sum(counts[minute] for minute in hour) for counts in (bad, good))
        if failed + stored >= 1000:
            worst = max(worst, failed / (failed + stored))
    return worst


def _times(all_: Sequence[Figures], when: str, whose: str) -> str:
    waits = sorted(wait for each in all_ for wait in each.waits[when, whose])
    if not waits:
        return "-"
    return " / ".join(_short(figures.percentile(waits, share)) for share in (0.5, 0.99, 1))


def _short(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.0f} s"


def _share(taken: dict[int, float], minutes: range, whole: float) -> float:
    return sum(taken[minute] for minute in minutes) / len(minutes) / whole


def _say(line: str) -> None:
    print(f"    {line}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards", description=__doc__)
    options = (
        ("--workspaces", int, 5_000, "workspaces that have the app"),
        ("--events-per-minute", float, 1.0, "events of a workspace, on average over the month"),
        ("--busy", float, 2.0, "the simulated hours, as a multiple of the average; the plan is for four"),
        ("--handler-seconds", float, 5.0, "how long a handler takes, on average"),
        ("--concurrency", int, 50, "SURELANE_CONCURRENCY"),
        ("--cost", float, Costs().insert + Costs().event, "seconds of the primary per event"),
        ("--seed", int, 1, "another number gives other posts"),
    )
    for name, kind, value, text in options:
        parser.add_argument(name, type=kind, default=value, help=f"{text} (default {value:g})", metavar="N")
    parser.add_argument(
        "--shards", type=int, nargs="+", default=[1, 3, 12], metavar="N", help="numbers of shards (1 3 12)"
    )
    parser.add_argument("--check", action="store_true", help="run the services, and print both")
    parser.add_argument("--measure", action="store_true", help="measure the primary's costs on this machine")
    return parser


if __name__ == "__main__":
    sys.exit(main())

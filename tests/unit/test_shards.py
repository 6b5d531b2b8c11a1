"""The simulation of shards keeps Slack's rules and counts right. Its benchmark compares it with real services."""

from collections import Counter
from collections.abc import Iterable

import pytest
from benchmarks.shards.__main__ import worst_hour
from benchmarks.shards.shape import CEILING, HOUR, Blast, Post, Shape, pause, spread
from benchmarks.shards.shard import BUDGET, Costs, Figures, Outage, Shard

FREE = Costs(0.0, 0.0, 0.0, 0.0, 0.0)


def run(posts: Iterable[Post], *, workers: int = 1, concurrency: int = 1, **given: object) -> Figures:
    names = {"named": lambda _, workspace: ("", str(workspace)), "costs": FREE, **given}
    return Shard(workers, concurrency, **names).run(posts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lasts", "delayed", "lost", "latest"),
    [
        (1.0, False, 0, 1.0),  # ingest waits
        (60.0, False, 0, 2 * BUDGET + 60.0),  # the second retry
        (366.0, False, 0, 3 * BUDGET + 360.0),  # the third one meets its end
        (369.0, False, 1, 0.0),
        (369.0, True, 0, 4 * BUDGET + 360.0 + HOUR),
    ],
)
def test_slack_gives_up_what_outages_outlive(lasts: float, delayed: bool, lost: int, latest: float) -> None:
    figures = run([Post(10.0, 0, 1, 1.0)], outage=Outage(10.0, lasts), delayed=delayed)
    assert (figures.lost, figures.stored) == (lost, 1 - lost)
    assert figures.finished == pytest.approx(0.0 if lost else 11.0 + latest, abs=6.0)
    assert figures.latest == pytest.approx(0.0 if lost or lasts < BUDGET else latest, abs=0.1)
    # What ran as a long outage began runs again.
    figures, repeated = run([Post(0.0, 0, 1, 20.0)], outage=Outage(10.0, lasts)), int(lasts > 60)
    assert (figures.repeated, figures.stored) == (repeated, 1)
    assert figures.finished > 10 + lasts if repeated else figures.finished == pytest.approx(20.0, abs=6.0)


def test_the_worst_hour_counts_all_shards_the_largest_workspaces_are_apart_and_slack_sends_again() -> None:
    broken, well = Figures(), Figures()
    broken.answers[False].update(dict.fromkeys(range(30, 90), 100))
    assert worst_hour([broken]) == 1.0
    well.answers[True].update(dict.fromkeys(range(120), 200))
    assert worst_hour([broken, well]) == pytest.approx(1 / 3)
    few = Figures()
    few.answers[False].update({1: 999})
    assert worst_hour([few]) == 0.0, "apps with few events are exempt"
    rates = Shape(1000, 100.0).rates()
    places = spread(rates, 4)
    assert sorted(places[:4]) == [0, 1, 2, 3]
    loads = [
        sum(rate for rate, place in zip(rates, places, strict=True) if place == shard) for shard in range(4)
    ]
    assert max(loads) < 1.05 * min(loads)
    assert [pause(retry, delayed=False) for retry in range(4)] == [0.0, 60.0, 300.0, None]
    hourly = [pause(retry, delayed=True) for retry in range(28)]
    assert hourly == [0.0, 60.0, 300.0, *[HOUR] * 24, None]


def test_posts_come_in_order_are_the_same_for_a_seed_and_within_slacks_ceiling() -> None:
    shape = Shape(50, 5.0, blast=Blast(2, 10.0, 10.0, 20.0))
    posts = list(shape.posts(600.0))
    assert posts == list(shape.posts(600.0)) == sorted(posts, key=lambda post: post.at)
    assert posts != list(Shape(50, 5.0, blast=shape.blast, seed=2).posts(600.0))
    without = list(Shape(50, 5.0).posts(600.0))
    assert [post for post in posts if post.thread >= 0] == without, "a blast changes nothing else"
    sizes = Counter(post.workspace for post in without)
    assert sizes[0] > 3 * sizes[9] > 0, "workspaces differ in size"
    most = Shape(3, 30.0, blast=Blast(2, 0.0, 300.0, CEILING / 300.0))
    assert max(most.rates()) == CEILING / HOUR
    counts = Counter(post.workspace for post in most.posts(HOUR))
    assert max(counts.values()) == counts[2] == CEILING

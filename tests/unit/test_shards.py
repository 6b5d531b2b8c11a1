"""The simulation of shards keeps the queue's rules and Slack's."""

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest
from benchmarks.shards.__main__ import worst_hour
from benchmarks.shards.queue import Event, Queue
from benchmarks.shards.shape import CEILING, HOUR, Blast, Post, Shape, pause, spread
from benchmarks.shards.shard import BUDGET, PATIENCE, Costs, Figures, Outage, Shard

FREE = Costs(0.0, 0.0, 0.0, 0.0, 0.0)
CROWD, SMALL = 0, 1


def queue_of(posts: Iterable[Post], *, fair: bool = True) -> Queue:
    queue = Queue(Random(1), fair=fair)
    for post in posts:
        queue.add(Event(post, post.at), post.at)
    return queue


def run(posts: Iterable[Post], *, workers: int = 1, concurrency: int = 1, **given: object) -> Figures:
    names = {"named": lambda _, workspace: ("", str(workspace)), "costs": FREE, **given}
    return Shard(workers, concurrency, **names).run(posts)  # type: ignore[arg-type]


def test_a_group_is_claimed_once_at_a_time_and_in_slacks_order() -> None:
    queue = queue_of([Post(2.0, 0, 7, 1.0), Post(1.0, 0, 7, 1.0)])
    ((group, events),) = queue.claim(1)
    assert [event.post.at for event in events] == [1.0, 2.0], "the members come with their head, in order"
    queue.add(Event(Post(3.0, 0, 7, 1.0), 3.0), 3.0)
    assert not queue.claim(10), "its group is claimed"
    assert queue.settle(group, 4.0), "the next event waits now"
    ((_, events),) = queue.claim(1)
    assert [event.post.at for event in events] == [3.0]
    queue = queue_of(Post(float(nth), 0, nth, 1.0) for nth in range(20))
    assert [len(queue.claim(limit)) for limit in (5, 10, 10)] == [5, 10, 5], "as many groups as it asks for"


def test_a_threads_events_run_one_after_another_though_slots_are_free() -> None:
    posts = [Post(float(nth), 0, 7, 10.0) for nth in range(3)]
    assert run(posts, concurrency=3).finished == pytest.approx(30.0), "the last two come in one claim"
    apart = [post._replace(thread=nth) for nth, post in enumerate(posts)]
    assert run(apart, concurrency=3).finished == pytest.approx(12.0)
    at_once = [Post(0.0, 0, nth, 10.0) for nth in range(6)]
    assert [run(at_once, concurrency=slots).finished for slots in (1, 2, 6)] == pytest.approx([60, 30, 10])
    burst = [Post(60.0 + nth / 100, 0, nth, 5.0) for nth in range(60)]
    (waits,) = run(burst, workers=16, concurrency=5).waits.values()
    assert max(waits) < 0.5, "it finds the free slots of all workers at once"


def test_workers_in_reserve_hear_no_more_once_the_responder_has_long_answered_alone() -> None:
    posts = [Post(float(nth), 0, nth, 0.1) for nth in range(PATIENCE)]
    shard = Shard(5, 5, costs=FREE)
    figures = shard.run(posts)
    assert [worker.listens(shard.now) for worker in shard.workers] == [True, True, False, False, False]
    assert figures.claims.total() <= 3 * len(posts), "the deputy claims once an event, and they never"


def beside_a_blast(*, fair: bool) -> float:
    """The longest wait of a small workspace's events beside 3,000 of another one."""
    blast = [Post(nth / 1000, CROWD, nth, 1.0) for nth in range(3000)]
    small = [Post(5.0 + nth, SMALL, 10_000 + nth, 1.0) for nth in range(60)]
    figures = run([*blast, *small], concurrency=10, fair=fair)
    return max(figures.waits["", str(SMALL)])


def test_a_blast_of_one_workspace_does_not_hold_up_the_others() -> None:
    assert beside_a_blast(fair=True) < 10 < 100 < beside_a_blast(fair=False)


def test_claims_take_a_crowds_events_last_except_for_one_in_eight() -> None:
    queue = queue_of(Post(0.0, CROWD, nth, 1.0) for nth in range(1000))
    assert queue.share(10.0)
    for nth in range(1000, 1800):
        queue.add(Event(Post(10.0, SMALL, nth, 1.0), 10.0), 10.0)
    first = Counter(queue.claim(1)[0][0].workspace for _ in range(800))
    assert 20 < first[CROWD] < 100, "one in eight begins with a random band"
    queue = queue_of(Post(0.0, CROWD, nth, 1.0) for nth in range(255))
    assert not queue.share(10.0), "few waiting events are no crowd"
    queue.add(Event(Post(0.0, CROWD, 255, 1.0), 0.0), 0.0)
    assert not queue.share(1.9), "they have not waited for two seconds"
    assert queue.share(10.0)
    assert len(queue.claim(1000)) == 256
    assert not queue.share(11.0), "nothing waits: the workspace shares again"


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

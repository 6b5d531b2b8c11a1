"""What Slack posts: workspaces of unequal size, threads, a blast, a ceiling, and what it sends again.

The simulation and the real run take their posts from here, so both meet the same ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, merge
from itertools import accumulate
from math import log
from random import Random
from typing import NamedTuple

CEILING = 30_000
"""Events per hour that Slack posts for a workspace and app, at most. It drops the others, and says so each minute."""
PAUSES = (0.0, 60.0, 300.0)
"""Seconds before each retry: at once, after one minute, and after five."""
HOUR, HOURLY = 3600.0, 24
"""With *Delayed Events* Slack goes on once per hour, for a day."""
DISABLES = 0.95
"""Slack switches an app off whose requests failed by more than this part within an hour, if they are 1,000 or more."""
FOLLOWED = 0.5
"""The part of posts that somebody follows up in the same thread."""
SOONEST, LATER = 10.0, 60.0
"""Seconds until the next post of a thread: at least, and on average beyond that."""
SPREAD = 0.8
"""Of a handler's duration: the sigma of its lognormal distribution."""


class Post(NamedTuple):
    """An event that somebody causes in Slack. ``workspace`` is its rank by size, from 0."""

    at: float
    workspace: int
    thread: int
    seconds: float
    """How long its handler takes."""


@dataclass(frozen=True)
class Blast:
    """Everybody in a workspace reacts to an announcement, each in a thread of their own."""

    workspace: int
    begins: float
    lasts: float
    rate: float
    """Events per second."""

    @property
    def ends(self) -> float:
        """When the last one is posted."""
        return self.begins + self.lasts


@dataclass(frozen=True)
class Shape:
    """The workspaces, and how much they post."""

    workspaces: int
    rate: float
    """Events per second of all, before the ceiling."""
    handler_seconds: float = 5.0
    """The mean."""
    blast: Blast | None = None
    seed: int = 1
    shrink: float = 1.0
    """Threads are followed up so many times as fast: for short runs."""

    def rates(self) -> list[float]:
        """Return each workspace's events per second: by Zipf's law, at most Slack's ceiling."""
        total = sum(1 / rank for rank in range(1, self.workspaces + 1))
        return [min(self.rate / total / rank, CEILING / HOUR) for rank in range(1, self.workspaces + 1)]

    def posts(self, seconds: float) -> Iterator[Post]:
        """Yield what is posted, in the order of time, without what exceeds the ceiling in an hour of the clock."""
        counts: dict[tuple[int, int], int] = {}
        for post in merge(self._usual(seconds), self._blast()):
            hour = (post.workspace, int(post.at // HOUR))
            counts[hour] = counts.get(hour, 0) + 1
            if counts[hour] <= CEILING and post.at < seconds:
                yield post

    def _usual(self, seconds: float) -> Iterator[Post]:
        random = Random(self.seed)
        sizes = list(accumulate(self.rates()))
        began = sizes[-1] * (1 - FOLLOWED)
        everyone = range(self.workspaces)
        following: list[tuple[float, int, int]] = []
        at, thread = random.expovariate(began), 0
        while at < seconds or following:
            if following and following[0][0] < at:
                now, workspace, which = heappop(following)
            else:
                now, workspace, which = at, random.choices(everyone, cum_weights=sizes)[0], thread
                at, thread = at + random.expovariate(began), thread + 1
            if now >= seconds:
                return
            yield Post(now, workspace, which, self._duration(random))
            if random.random() < FOLLOWED:
                pause = (SOONEST + random.expovariate(1 / LATER)) / self.shrink
                heappush(following, (now + pause, workspace, which))

    def _blast(self) -> Iterator[Post]:
        if self.blast is None:
            return
        random = Random(f"{self.seed} blast")
        for nth in range(int(self.blast.rate * self.blast.lasts)):
            at = self.blast.begins + nth / self.blast.rate
            yield Post(at, self.blast.workspace, -1 - nth, self._duration(random))

    def _duration(self, random: Random) -> float:
        return random.lognormvariate(log(self.handler_seconds) - SPREAD**2 / 2, SPREAD)


def spread(rates: Sequence[float], shards: int) -> list[int]:
    """Return each workspace's shard, as the router's map should say: the largest first, to the emptiest shard."""
    filled = [(0.0, shard) for shard in range(shards)]
    places = []
    for rate in rates:
        load, shard = heappop(filled)
        places.append(shard)
        heappush(filled, (load + rate, shard))
    return places


def pause(retry: int, *, delayed: bool) -> float | None:
    """Return how long Slack waits before a retry, counted from 0; ``None``: it gives the event up."""
    if retry < len(PAUSES):
        return PAUSES[retry]
    return HOUR if delayed and retry < len(PAUSES) + HOURLY else None

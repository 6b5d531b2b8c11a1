"""The rules of the queue in Python: groups, lanes, bands, crowds. ``006-claim.sql`` has the same rules.

Left out, as this load does not meet them: priorities, limits, failures, and claim cursors.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from benchmarks.shards.shape import Post

MEMBERS = 100
"""Events that a claim takes behind a group's head."""
LANES, BAND_LANES = 16, 4
"""Of band 0, and of each other one."""
CROWD_BANDS = (0, 4, 5, 6, 7, 8, 9, 10, 11)
LONG = 2.0
"""Seconds after which waiting events may be a crowd's."""
SAMPLE, FEWEST = 512, 256
"""Waiting heads that are looked at; with fewer there is no crowd."""


@dataclass(eq=False, slots=True)
class Event:
    """A stored event."""

    post: Post
    stored: float
    tried: bool = False


@dataclass(eq=False, slots=True)
class Group:
    """A thread: its first event leads it through a lane, and one claim at a time stands."""

    thread: int
    workspace: int
    events: list[tuple[float, int, Event]] = field(default_factory=list)
    """What waits, a heap by Slack's time."""
    claimed: bool = False
    vt: float = 0.0
    """Since when its head waits."""
    free_since: float = 0.0
    """When its last claim was settled."""


class Queue:
    """The waiting events of a shard."""

    def __init__(self, random: Random, *, fair: bool = True) -> None:
        self._random = random
        self._fair = fair
        self._groups: dict[int, Group] = {}
        lanes: list[deque[Group]] = [deque() for _ in range(LANES)]
        self._bands = {0: lanes}
        self._turned = [lanes[first:] + lanes[:first] for first in range(LANES)]
        self._crowds: dict[int, set[int]] = {}
        self._others = 0
        """The band of the workspaces that are no crowd."""
        self._number = self.heads = 0

    def add(self, event: Event, now: float) -> None:
        """Store an event, or put one back."""
        thread = event.post.thread
        group = self._groups.get(thread)
        if group is None:
            group = self._groups[thread] = Group(thread, event.post.workspace)
        self._number += 1
        heappush(group.events, (event.post.at, self._number, event))
        if not group.claimed and len(group.events) == 1:
            self._lead(group, now)

    def settle(self, group: Group, now: float) -> bool:
        """End a group's claim. Return whether its next event waits now."""
        group.claimed = False
        group.free_since = now
        if group.events:
            self._lead(group, now)
            return True
        del self._groups[group.thread]
        return False

    def _lead(self, group: Group, now: float) -> None:
        band = next((band for band, crowd in self._crowds.items() if group.workspace in crowd), self._others)
        lanes = self._bands[band]
        group.vt = now
        lanes[(group.thread * 2_654_435_761 >> 16) % len(lanes)].append(group)
        self.heads += 1

    def claim(self, limit: int) -> list[tuple[Group, list[Event]]]:
        """Take the oldest groups of the lanes, from a random one on, until they have ``limit`` events."""
        works: list[tuple[Group, list[Event]]] = []
        if not self.heads:
            return works
        for lane in self._walk():
            while lane and limit > 0:
                group = lane.popleft()
                self.heads -= 1
                group.claimed = True
                taken = [heappop(group.events)[2] for _ in range(min(len(group.events), 1 + MEMBERS))]
                limit -= len(taken)
                works.append((group, taken))
            if limit <= 0:
                break
        return works

    def _walk(self) -> Iterable[deque[Group]]:
        """Return the lanes: crowds last, except that one claim in eight takes the bands in random order."""
        first = int(self._random.random() * LANES)
        if len(self._bands) == 1:
            return self._turned[first]
        factor, in_turn = self._random.randint(1, 12), self._random.random() < 1 / 8
        bands = sorted(
            self._bands,
            key=lambda band: (not in_turn and band in self._crowds, (band + 1) * factor % 13),
        )
        every = (self._bands[band] for band in bands)
        return [lanes[(first + turn) % len(lanes)] for lanes in every for turn in range(len(lanes))]

    def share(self, now: float) -> bool:
        """Give a workspace with a backlog a band of its own. Return whether there is a crowd still."""
        if not self._fair:
            return False
        crowd = self._crowd(now)
        free = next((band for band in CROWD_BANDS if band != self._others and band not in self._crowds), None)
        if crowd and free is not None:
            band, self._others = self._others, free
            self._crowds[band] = crowd
            self._bands.setdefault(free, [deque() for _ in range(BAND_LANES)])
            self._move_others(band, now)
        for band in list(self._crowds):
            if not any(self._bands[band]):
                del self._crowds[band]
        if not self._crowds:
            self._others = 0
        return bool(self._crowds)

    def _crowd(self, now: float) -> set[int]:
        lanes = self._bands[self._others]
        seen: Counter[int] = Counter()
        for lane in lanes:
            for _, group in zip(range(SAMPLE // len(lanes)), lane, strict=False):
                if group.vt <= now - LONG:
                    seen[group.workspace] += 1
        total = seen.total()
        large = {workspace for workspace, count in seen.items() if count >= total / 8}
        half = sum(seen[workspace] for workspace in large) >= total / 2
        return large if total >= FEWEST and half else set()

    def _move_others(self, band: int, now: float) -> None:
        """Move what waits behind a new crowd. The product takes steps of a thousand heads a lane."""
        for lane in self._bands[band]:
            groups = list(lane)
            lane.clear()
            for group in groups:
                if group.workspace in self._crowds[band]:
                    lane.append(group)
                else:
                    self.heads -= 1
                    self._lead(group, now)

"""What a seed decides: the fleet, what is posted, and which faults come when. A plan can be cut down while it fails."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

from surelane_dev.testing.fleets.virtual import EPOCH
from surelane_dev.testing.fleets.wire import FaultRates

TROUBLE = 40.0
"""Seconds for which things break."""
GROUPS = ("red", "green", "blue")
FAULTS = (
    "kill",
    "deploy",
    "cut_off",
    "restart",
    "refuse",
    "jump",
    "leap",
    "vanish",
    "freeze",
    "half_open",
    "lock",
    "stop_locked",
    "pause",
    "failover",
)
KINDS = (
    "plain",
    "plain",
    "few",
    "flaky",
    "flaky",
    "steps",
    "waits",
    "asks",
    "questions",
    "paced",
    "spare",
    "keyed",
    "keyed",
    "later",
)
FEATURES = ("hasty", "tick", "plan", "doomed", "chat", "merged", "ranked", "again", "pauses")
"""What programs do besides: see tests/simulation/features.py. Every second seed has some of them."""
BESIDES = {6: ("move",), 9: ("move", "blink"), 14: ("hold", "move"), 15: ("blink", "hold")}
"""Further faults of some seeds, by the remainder of the seed and 16."""
TRIES = 200
"""Runs in which a failing plan is cut down, at most."""


@dataclass(frozen=True)
class Version:
    """What a worker is deployed as. ``few``: the limit of that kind. ``spare``: whether it handles that kind."""

    few: int = 2
    spare: bool = True
    skew: float = 0.0

    def __str__(self) -> str:
        return f"a worker (few={self.few}, spare={self.spare}, clock {self.skew:+.1f} s)"


@dataclass(frozen=True)
class Post:
    """Something that comes to the queue. ``again``: it comes twice at once, as Slack's retries do."""

    at: float
    number: int
    kind: str
    group: str | None
    again: bool
    size: float
    """From 0 to 1: what it means depends on the kind."""

    @property
    def key(self) -> str:
        return f"{self.kind}-{self.number}"

    def __str__(self) -> str:
        return f"{self.at:6.1f} s: {self.key} in group {self.group}{', twice' if self.again else ''}"


@dataclass(frozen=True)
class Fault:
    """Something that breaks."""

    at: float
    name: str
    pick: float
    """From 0 to 1: whom it meets."""
    size: float
    """From 0 to 1: how long or how far."""
    version: Version
    """Of the worker that it starts, if it does."""

    def __str__(self) -> str:
        return f"{self.at:6.1f} s: {self.name} (pick {self.pick:.2f}, size {self.size:.2f})"


@dataclass(frozen=True)
class Plan:
    """A whole run."""

    seed: int
    kinds: frozenset[str]
    """What the workers handle."""
    starts: float
    """When the workers do. What came before them waits."""
    workers: tuple[Version, ...]
    posts: tuple[Post, ...]
    faults: tuple[Fault, ...]
    network: FaultRates
    features: tuple[str, ...] = ()
    encrypted: bool = False
    """Whether what is stored is encrypted."""

    @classmethod
    def of(cls, seed: int) -> "Plan":
        """Return the plan of a seed. Each has a few sorts of faults and of events: where all come, some hide others."""
        random = Random(seed)
        names = random.sample(FAULTS, random.randint(1, 5))
        kinds = {*random.sample(sorted(set(KINDS)), random.randint(3, 7))}
        if "pause" in names:
            kinds |= {"flaky", "later"}
        pause = random.choice((3.0, 6.0, 12.0))
        workers = tuple(_version(random) for _ in range(random.randint(1, 3)))
        network = FaultRates(*(random.choice((0, 0, 0.01, 0.05)) for _ in range(3)))
        posts = [
            Post(
                at,
                number,
                random.choice([kind for kind in KINDS if kind in kinds]),
                random.choice((*GROUPS, *GROUPS, None)),
                random.random() < 0.2,
                random.random(),
            )
            for number, at in enumerate(_times(random, random.choice((1.5, 2.5, 5.0)), TROUBLE + 10))
        ]
        faults: list[Fault] = []
        for at in _times(random, pause, TROUBLE):
            fault = Fault(at, random.choice(names), random.random(), random.random(), _version(random))
            if fault.name != "leap" or all(each.name != "leap" for each in faults):  # clocks rarely do
                faults.append(fault)
        starts = random.choice((0.0, 0.0, 15.0))
        workers = (replace(workers[0], spare=True), *workers[1:])
        own = Random(f"moves {seed}")  # the other seeds' plans stay
        for name in BESIDES.get(seed % 16, ()):
            faults += [
                Fault(at, name, own.random(), own.random(), Version())
                for at in sorted(own.uniform(5, TROUBLE) for _ in range(own.randint(1, 3)))
            ]
        plan = cls(seed, frozenset(kinds), starts, workers, tuple(posts), tuple(faults), network)
        return plan if seed % 2 else _with_features(plan)

    def __str__(self) -> str:
        timed: list[Post | Fault] = [*self.posts, *self.faults]
        parts: list[object] = [*self.workers, *sorted(timed, key=lambda each: each.at)]
        if self.network != FaultRates():
            parts.append(self.network)
        return "\n".join(f"  {part}" for part in parts)


def _with_features(plan: Plan) -> Plan:
    """Return a plan in which features take the place of half of the posts."""
    random = Random(f"features {plan.seed}")
    features = random.sample(FEATURES[:-1], 3) + random.sample(FEATURES[-1:], random.randint(0, 1))
    used = [
        Post(
            at,
            1000 + number,
            random.choice(features),
            random.choice((*GROUPS, None)),
            random.random() < 0.4,
            random.random(),
        )
        for number, at in enumerate(_times(random, 5.0, TROUBLE))
    ]
    posts = *plan.posts[::2], *used
    return replace(plan, posts=posts, features=tuple(features), encrypted=random.random() < 0.25)


def team_of(group: str | None) -> str:
    """Return the workspace of a group: there are two."""
    return "T2" if group == GROUPS[-1] else "T1"


def thread_key(group: str) -> str:
    """Return the group key of events in a thread."""
    return f"{team_of(group)}:C1:{thread_of(group)}"


def thread_of(group: str) -> str:
    """Return the timestamp of the message that began a thread."""
    return f"{EPOCH + 1 + GROUPS.index(group):.6f}"


def _version(random: Random) -> Version:
    return Version(
        random.choice((1, 2, 2, 3)), random.random() < 0.7, random.choice((0, 0, random.uniform(-30, 30)))
    )


def _times(random: Random, pause: float, until: float) -> list[float]:
    times, at = [], random.expovariate(1 / pause)
    while at < until:
        times.append(at)
        at += random.expovariate(1 / pause)
    return times


async def shrunk(plan: Plan, fails: Callable[[Plan], Awaitable[bool]], tries: int = TRIES) -> Plan:
    """Return what is left of a failing plan when nothing more can go, as far as ``tries`` runs tell."""
    left = tries

    async def tried(smaller: Plan) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and await fails(smaller)

    if await tried(calm := replace(plan, network=FaultRates())):
        plan = calm
    for field in ("faults", "posts", "workers"):
        plan = await _without(plan, field, tried)
    return plan


async def _without(plan: Plan, field: str, fails: Callable[[Plan], Awaitable[bool]]) -> Plan:
    """Remove items of a field: halves of what is left first, then ever smaller parts."""
    items: Sequence[Any] = getattr(plan, field)
    size = max(1, len(items) // 2)
    while items:
        start = 0
        while start < len(items):
            fewer = (*items[:start], *items[start + size :])
            if (fewer or field != "workers") and await fails(
                smaller := replace(plan, **cast("Any", {field: fewer}))
            ):
                plan, items = smaller, fewer
            else:
                start += size
        if size == 1:
            break
        size = max(1, size // 2)
    return plan

"""Explore every state that a specification can reach, breadth first, and find the shortest way to a bad one."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

MOST = 2_000_000
"""States. A specification with more is a mistake."""


class Specification(ABC):
    """What may happen, step by step. A state is a value: equal states are one."""

    unfair = ""
    """The steps that need never happen, by the first word of their names: faults, and what people do. Every other step
    is weakly fair: if it is possible from some moment on, it happens."""

    def __init__(self, *old: str, **size: Any) -> None:
        """Take the old rules to put back, and what a configuration changes."""
        self.old = frozenset(old)
        for name, value in size.items():
            setattr(self, name, value)

    faults = ""
    """The bounded steps that may happen, each as often as it is named: faults, and what people do."""

    @property
    def left(self) -> tuple[tuple[str, int], ...]:
        """Return how often each of them may happen."""
        return tuple(sorted(Counter(self.faults.split()).items()))

    def spend(self, state: Any, fault: str) -> Any:
        """Return the state with one such step less; ``None``: there is none left."""
        left = dict(state.left)
        if not left.get(fault):
            return None
        return state._replace(left=tuple(sorted((left | {fault: left[fault] - 1}).items())))

    @abstractmethod
    def start(self) -> Any:
        """Return the first state."""

    @abstractmethod
    def steps(self, state: Any) -> Iterable[tuple[str, Any]]:
        """Return the steps that are possible in a state: their names, and the states that follow."""

    def broken(self, state: Any) -> str:
        """Return which promise a state breaks; an empty text: none."""
        return str(getattr(state, "broke", ""))

    @abstractmethod
    def good(self, state: Any) -> bool:
        """Return whether what must come again and again is there."""


@dataclass
class Report:
    """What was explored, and the first violation."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    why: str = ""
    trace: list[str] = field(default_factory=list)
    """The shortest way to a state that breaks a promise."""
    cycle: list[str] = field(default_factory=list)
    """The steps that may then repeat forever, without a good state. Empty: nothing fair is possible then."""

    def __str__(self) -> str:
        ways = [*self.trace, *(["forever:", *self.cycle] if self.cycle else [])]
        return "\n  ".join(
            [self.why or f"{self.states} states, {self.steps} steps, {self.depth} deep", *ways]
        )


def check(spec: Specification) -> Report:
    """Explore all states. Stop at the first that breaks a promise; else look for a run without good ones."""
    graph = _Graph(spec)
    if not graph.report.why:
        graph.find_a_lasso()
    return graph.report


class _Graph:
    def __init__(self, spec: Specification) -> None:
        self.spec, self.report = spec, Report()
        first = spec.start()
        self.came: dict[Hashable, tuple[str, Hashable]] = {first: ("", first)}
        """How each state was reached first."""
        self.edges: dict[Hashable, list[tuple[str, Hashable]]] = {}
        level = [first]
        while level and not self.report.why:
            level = list(self.next_level(level))
            self.report.depth += bool(level)
        self.report.states = len(self.came)
        self.report.steps = sum(map(len, self.edges.values()))

    def next_level(self, level: list[Hashable]) -> Iterator[Hashable]:
        """Take all steps of the states that are equally far from the first one."""
        for state in level:
            if why := self.spec.broken(state):
                self.report.why, self.report.trace = why, self.way_to(state)
                return
            # A step that changes nothing is not possible.
            self.edges[state] = [(name, to) for name, to in self.spec.steps(state) if to != state]
            for name, to in self.edges[state]:
                if to not in self.came:
                    self.came[to] = name, state
                    yield to
            assert len(self.came) <= MOST, "too many states"

    def way_to(self, state: Hashable) -> list[str]:
        way: list[str] = []
        while self.came[state][0]:
            name, state = self.came[state]
            way.append(name)
        return way[::-1]

    def find_a_lasso(self) -> None:
        """Find states without a good one among them, which a weakly fair run need never leave."""
        bad = {state for state in self.edges if not self.spec.good(state)}
        lassos = [some for some in components(bad, self.followers(bad)) if self.is_fair(some)]
        if not lassos:
            return
        entry = min((state for some in lassos for state in some), key=lambda state: len(self.way_to(state)))
        (some,) = [some for some in lassos if entry in some]
        self.report.why, self.report.trace = "something waits forever", self.way_to(entry)
        self.report.cycle = sorted({name for state in some for name, to in self.edges[state] if to in some})

    def followers(self, among: set[Hashable]) -> Callable[[Hashable], list[Hashable]]:
        return lambda state: [to for _, to in self.edges[state] if to in among]

    def is_fair(self, some: set[Hashable]) -> bool:
        """Return whether a run may stay in these states: each fair step happens there, or is at times impossible."""
        always = set.intersection(*({name for name, _ in self.edges[state]} for state in some))
        inside = {name for state in some for name, to in self.edges[state] if to in some}
        return all(name.split()[0] in self.spec.unfair.split() for name in always - inside)


def components(
    states: Iterable[Hashable], followers: Callable[[Hashable], list[Hashable]]
) -> Iterator[set[Hashable]]:
    """Return the strongly connected components (Tarjan's, without recursion)."""
    number: dict[Hashable, int] = {}
    low: dict[Hashable, int] = {}
    path: list[Hashable] = []
    done: set[Hashable] = set()
    for root in states:
        work = [(root, iter(followers(root)))] if root not in number else []
        while work:
            state, rest = work[-1]
            if state not in number:
                number[state] = low[state] = len(number)
                path.append(state)
            for to in rest:
                if to not in number:
                    work.append((to, iter(followers(to))))
                    break
                if to not in done:
                    low[state] = min(low[state], number[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[state])
                if low[state] == number[state]:
                    some = {path.pop()}
                    while state not in some:
                        some.add(path.pop())
                    done |= some
                    yield some

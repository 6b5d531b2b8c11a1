"""How events enter a group and meet their duplicates, and in which order locks are taken (002, 003; ADR 0001, 0012)."""

from collections.abc import Iterator
from typing import NamedTuple

from tests.specification.checker import Specification


class Group(NamedTuple):
    """A group whose head is event 0, and transactions under way."""

    head: int = 0
    live: frozenset[int] = frozenset({0})
    stored: frozenset[int] = frozenset()
    """Members of open transactions."""
    next: int | None = None
    """The settle of the head has locked it, and elected this event; -1: there is none."""
    ended: frozenset[int] = frozenset()


class Entering(Specification):
    """Programs store members 1 and 2, and keep their transactions open as long as they like."""

    unfair = ("enqueue", "commit")

    def start(self) -> Group:
        return Group()

    def steps(self, s: Group) -> Iterator[tuple[str, Group]]:
        for i in (1, 2):
            if i not in s.live | s.stored | s.ended:
                # The first event of an empty group is its head at once, and others wait for it at the index.
                if s.head >= 0 or s.live or not s.stored:
                    yield f"enqueue {i}", s._replace(stored=s.stored | {i})
            elif i in s.stored and (to := self.member_joins(s, i)):
                yield f"commit {i}", to
        holds = s.stored if "joined_at_insert" in self.old else frozenset()
        if s.head >= 0 and s.next is None and not holds:
            yield f"settle {s.head}", s._replace(next=min(s.live - {s.head}, default=-1))
        elif s.next is not None:
            to = s._replace(live=s.live - {s.head}, ended=s.ended | {s.head}, head=s.next, next=None)
            yield f"settle {s.head} commits", to

    def member_joins(self, s: Group, i: int) -> Group | None:
        """Lock the head: while a settle has it, the commit waits. Without a head, elect one."""
        if s.next is not None and "joined_unlocked" not in self.old:
            return None
        to = s._replace(stored=s.stored - {i}, live=s.live | {i})
        return to._replace(head=i) if s.head < 0 else to

    def broken(self, s: Group) -> str:
        return "a group without a head" if s.live and s.head < 0 else ""

    def good(self, s: Group) -> bool:
        """What is committed has ended."""
        return not s.live


class Duplicate(NamedTuple):
    """An event under a key, and the second insert of it."""

    live: bool = True
    history: bool = False
    second: str = ""
    """The second insert has stored its row (``stored``), or looked into history (``unknown``); then its answer."""


class Duplicates(Specification):
    """A delivery is repeated while the first one ends."""

    def start(self) -> Duplicate:
        return Duplicate()

    def steps(self, s: Duplicate) -> Iterator[tuple[str, Duplicate]]:
        first, then = ("", "stored")
        if "history_first" in self.old:
            first, then = ("unknown", "")
            if s.second == "":
                yield "find_in_history", s._replace(second="duplicate" if s.history else "unknown")
        if s.live:
            yield "settle", s._replace(live=False, history=True)
        if s.second == first:
            yield "insert", s._replace(second="duplicate" if s.live else then or "new")
        if s.second == "stored":
            yield "find_in_history", s._replace(second="duplicate" if s.history else "new")

    def broken(self, s: Duplicate) -> str:
        return "an event is stored twice" if s.second == "new" else ""

    def good(self, s: Duplicate) -> bool:
        return s.second == "duplicate"


Lock = tuple[str, str]
"""How a statement locks a row (``share``, ``update``), and which."""

ORDERS: dict[str, tuple[tuple[Lock, ...], ...]] = {
    "heads_in_order": tuple((("share", "head g"), ("share", "head h"), ("update", "key")) for _ in "ab"),
    "newcomers": tuple((("update", "head g"),) for _ in "ab"),
    "head_then_event": tuple((("update", "head g"), ("update", "event g2")) for _ in "ab"),
    "inner_then_outer": tuple(
        (("update", child), ("update", "inner"), ("update", "outer")) for child in "ab"
    ),
    # What is not done any more, or is documented:
    "heads_in_any_order": (
        (("update", "head g"), ("update", "head h")),
        (("update", "head h"), ("update", "head g")),
    ),
    "raised_locks": tuple((("share", "head g"), ("update", "head g")) for _ in "ab"),
    "event_then_head": (
        (("update", "head g"), ("update", "event g2")),
        (("update", "event g2"), ("update", "head g")),
    ),
    "outer_then_inner": (
        (("update", "a"), ("update", "inner"), ("update", "outer")),
        (("update", "b"), ("update", "outer"), ("update", "inner")),
    ),
    "new_groups_in_any_order": (
        (("update", "index g"), ("update", "index h")),
        (("update", "index h"), ("update", "index g")),
    ),
}
"""Transactions that wait for locks, by the order in which they take them (docs/engine.md)."""


class Locks(Specification):
    """Two transactions take locks one after another, and keep them until they end."""

    order = ""

    def start(self) -> tuple[int, ...]:
        return (0,) * len(self.programs)

    @property
    def programs(self) -> tuple[tuple[Lock, ...], ...]:
        return ORDERS[next(iter(self.old), self.order)]

    def steps(self, s: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
        for t, program in enumerate(self.programs):
            if s[t] < len(program) and not self.waits(s, t, program[s[t]]):
                yield f"{program[s[t]]} t{t}", (*s[:t], s[t] + 1, *s[t + 1 :])
            elif s[t] == len(program):
                yield f"commit t{t}", (*s[:t], s[t] + 1, *s[t + 1 :])

    def waits(self, s: tuple[int, ...], t: int, wanted: Lock) -> bool:
        held = [
            lock
            for other, program in enumerate(self.programs)
            if other != t and s[other] <= len(program)
            for lock in program[: s[other]]
        ]
        return any(row == wanted[1] and "update" in (mode, wanted[0]) for mode, row in held)

    def broken(self, s: tuple[int, ...]) -> str:
        return "" if self.good(s) or any(self.steps(s)) else "a deadlock"

    def good(self, s: tuple[int, ...]) -> bool:
        return all(at > len(program) for at, program in zip(s, self.programs, strict=True))

"""How events enter a group, and meet their duplicates (002-group, 003-insert; ADR 0001, 0012)."""

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

    unfair = "enqueue commit"

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

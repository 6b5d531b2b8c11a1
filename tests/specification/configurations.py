"""The configurations that are explored, and the old rules that must fail in one of them."""

from typing import Any, NamedTuple

from tests.specification.checker import Specification
from tests.specification.entering import Duplicates, Entering, Locks
from tests.specification.groups import Group
from tests.specification.limits import Limit
from tests.specification.sessions import Sessions
from tests.specification.waits import Children, Cursor, Steps, Suspension


class Configuration(NamedTuple):
    """A specification with its size."""

    spec: type[Specification]
    about: str
    size: dict[str, Any]

    def put_back(self, *old: str) -> Specification:
        return self.spec(*old, **self.size)


def _of(spec: type[Specification], about: str, **size: Any) -> Configuration:
    return Configuration(spec, about, size)


CONFIGURATIONS = {
    "group": _of(
        Group,
        "two events, two workers: a failure, a release, a lapse, a death",
        faults={"fail": 1, "release": 1, "lapse": 1, "die": 1},
    ),
    "group-late": _of(
        Group,
        "two events in any order: a failure and a lapse",
        in_order=False,
        faults={"fail": 1, "lapse": 1},
    ),
    "group-limited": _of(
        Group,
        "an event of a limited kind between two others",
        events="ala",
        workers={"w1": "al"},
        faults={"fail": 1},
    ),
    "group-teams": _of(
        Group,
        "workers of two kinds, one of which is replaced",
        events="aba",
        workers={"w1": "a", "w2": "b"},
        faults={"fail": 1, "retire": 1},
    ),
    "group-unhandled": _of(
        Group, "a kind that no worker handles", events="ua", in_order=False, faults={"fail": 1}
    ),
    "group-paused": _of(
        Group,
        "a retry, a pause of its kind, and an event of another kind that is due",
        events="aba",
        workers={"w1": "ab"},
        scheduled=(1,),
        faults={"fail": 1, "pause": 1},
    ),
    "group-poison": _of(Group, "an event that kills its worker", poison=True, faults={"die": 2}),
    "group-hangs": _of(
        Group, "handlers that hang, and a request to cancel", hangs=True, faults={"cancel": 1}
    ),
    "group-locked": _of(
        Group,
        "a foreign lock on a member, a lapse, a request to cancel",
        faults={"lock": 1, "lapse": 1, "cancel": 1},
    ),
    "group-swept": _of(Group, "a sweep beside a lapse", events="a", most=1, faults={"lapse": 1}),
    "session": _of(
        Sessions,
        "two cuts, a refused settle, a stop with a claim",
        faults={"cut": 2, "refuse": 1, "stop": 1},
    ),
    "session-killed": _of(
        Sessions, "a cut, a kill, a new process", faults={"cut": 1, "kill": 1, "restart": 1}
    ),
    "session-half-open": _of(
        Sessions, "a connection that the server believes in", half_open=True, faults={"cut": 1}
    ),
    "session-second": _of(
        Sessions, "a second connection, a cut, a kill", faults={"cut": 1, "kill": 1, "join": 1}
    ),
    "limit": _of(Limit, "three events, two claims, settles", events=3),
    "limit-leases": _of(Limit, "two events, a lapse beside a heartbeat", faults={"lapse": 1, "beat": 1}),
    "entering": _of(Entering, "two open transactions beside settles"),
    "duplicate": _of(Duplicates, "a repeated delivery as the first one ends"),
    "suspension": _of(Suspension, "a signal beside a suspension"),
    "steps": _of(Steps, "a step of two attempts at once"),
    "children": _of(Children, "the last two children"),
    "cursor": _of(Cursor, "a late commit behind a cursor"),
    "locks": _of(Locks, "members of two groups", order="heads_in_order"),
    "locks-newcomers": _of(Locks, "two newcomers for which the head steps down", order="newcomers"),
    "locks-heads": _of(Locks, "a settle and an operator", order="head_then_event"),
    "locks-workflow": _of(Locks, "two children of nested workflows", order="inner_then_outer"),
}
"""Explored in ``make test``."""

LARGE = {
    "group-large": _of(
        Group,
        "three events, two workers: a failure, a release, a lapse, a death",
        events="aaa",
        faults={"fail": 1, "release": 1, "lapse": 1, "die": 1},
    ),
    "group-late-large": _of(
        Group, "three events in any order", events="aaa", in_order=False, faults={"fail": 1, "lapse": 1}
    ),
    "limit-large": _of(
        Limit, "three events, two lapses, two heartbeats", events=3, faults={"lapse": 2, "beat": 2}
    ),
}
"""Explored by ``make specification``."""


class OldRule(NamedTuple):
    """A rule that the queue once had, or that was refused."""

    configuration: str
    broken: str
    """Words of the promise that it breaks."""
    decided: str
    """The decision that has the rule of today."""


FOREVER = "nothing good comes"
"""Of old rules under which something waits for ever."""

OLD_RULES = {
    "no_number": OldRule("group", "does not stand", "0004"),
    "no_standing_claim": OldRule("group", "does not stand", "0004"),
    "lapsed_heads_stay": OldRule("group", "overtook", "0005"),
    "released_overtaken": OldRule("group", "overtook", "0005"),
    "held_members_stay": OldRule("group", "in the hands of", "0005"),
    "members_spent": OldRule("group-poison", "lost an attempt", "0005"),
    "skipped_members": OldRule("group-limited", "overtook", "0005"),
    "gone_at_once": OldRule("group-teams", "overtook", "0005"),
    "elected_by_order": OldRule("group-unhandled", FOREVER, "0005"),
    "idle_heads_stay": OldRule("group-paused", "overtook", "0005"),
    "unfenced_claims": OldRule("group-locked", "in the hands of", "0012"),
    "cancelled_extended": OldRule("group-hangs", FOREVER, "0047"),
    "swept_as_seen": OldRule("group-swept", "while it ran", "0004"),
    "claims_elsewhere": OldRule("session", "after its worker was taken for dead", "0035"),
    "fixed_key": OldRule("session-half-open", FOREVER, "0035"),
    "kept_claims": OldRule("session", FOREVER, "0035"),
    "released_once": OldRule("session", FOREVER, "0035"),
    "without_moment": OldRule("session", "is released", "0035"),
    "refused_dropped": OldRule("session", FOREVER, "0026"),
    "retires_anyway": OldRule("session", FOREVER, "0035"),
    "predecessor_kept": OldRule("session-killed", FOREVER, "0035"),
    "locks_first": OldRule("session", "reported lost", "0035"),
    "rescued_as_seen": OldRule("session", "is taken for dead", "0035"),
    "claims_linger": OldRule("session", "after its worker was taken for dead", "0035"),
    "joined_alone": OldRule("session-second", "after its worker was taken for dead", "0080"),
    "no_turns": OldRule("limit", "run at once", "0040"),
    "looked_first": OldRule("limit", FOREVER, "0040"),
    "no_second_look": OldRule("limit", FOREVER, "0040"),
    "late_limits": OldRule("limit", "run at once", "0040"),
    "lapsed_is_free": OldRule("limit-leases", "run at once", "0040"),
    "not_read_again": OldRule("limit-leases", "run at once", "0040"),
    "clock_first": OldRule("limit-leases", "run at once", "0040"),
    "lapsed_renewed": OldRule("limit-leases", "run at once", "0040"),
    "joined_unlocked": OldRule("entering", "without a head", "0012"),
    "joined_at_insert": OldRule("entering", FOREVER, "0012"),
    "history_first": OldRule("duplicate", "stored twice", "0001"),
    "signals_unlocked": OldRule("suspension", FOREVER, "0046"),
    "unfenced_steps": OldRule("steps", "is stored", "0046"),
    "siblings_looked_for": OldRule("children", FOREVER, "0050"),
    "no_peeks": OldRule("cursor", FOREVER, "0003"),
    "claims_undo_peeks": OldRule("cursor", FOREVER, "0026"),
    "heads_in_any_order": OldRule("locks", "deadlock", "0012"),
    "raised_locks": OldRule("locks-newcomers", "deadlock", "0012"),
    "event_then_head": OldRule("locks-heads", "deadlock", "0012"),
    "outer_then_inner": OldRule("locks-workflow", "deadlock", "0050"),
    "new_groups_in_any_order": OldRule("locks", "deadlock", "0012"),
}
"""By name. Two are the queue's still, and documented: claims_linger and new_groups_in_any_order."""

"""The configurations that are explored, and the old rules that must fail in one of them."""

from typing import Any, NamedTuple

from tests.specification.checker import Specification
from tests.specification.entering import Duplicates, Entering
from tests.specification.groups import Group
from tests.specification.limits import Limit
from tests.specification.sessions import Sessions
from tests.specification.waits import Children, Cursor, Steps, Suspension


class Configuration(NamedTuple):
    """A specification with its size."""

    about: str
    spec: type[Specification]
    faults: str = ""
    size: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it

    def put_back(self, *old: str) -> Specification:
        return self.spec(*old, faults=self.faults, **self.size)


ALL = "fail release lapse die"
CONFIGURATIONS = {
    "group": Configuration("two events, two workers: a failure, a release, a lapse, a death", Group, ALL),
    "group-late": Configuration("two events in any order", Group, "fail lapse", {"in_order": False}),
    "group-limited": Configuration(
        "an event of a limited kind between two", Group, "fail", {"events": "ala", "workers": {"w1": "al"}}
    ),
    "group-teams": Configuration(
        "two kinds, a worker for each, one of them replaced",
        Group,
        "fail retire",
        {"events": "aba", "workers": {"w1": "a", "w2": "b"}},
    ),
    "group-unhandled": Configuration(
        "a kind that no worker handles", Group, "fail", {"events": "ua", "in_order": False}
    ),
    "group-paused": Configuration(
        "a retry, a pause of its kind, and another kind that is due",
        Group,
        "fail pause",
        {"events": "aba", "workers": {"w1": "ab"}, "scheduled": (1,)},
    ),
    "group-poison": Configuration("an event that kills its worker", Group, "die die", {"poison": True}),
    "group-hangs": Configuration("handlers that hang, a request to cancel", Group, "cancel", {"hangs": True}),
    "group-locked": Configuration("a foreign lock on a member, a lapse", Group, "lock lapse cancel"),
    "group-swept": Configuration("a sweep beside a lapse", Group, "lapse", {"events": "a", "most": 1}),
    "session": Configuration(
        "two cuts, a refused settle, a stop with a claim", Sessions, "cut cut refuse stop"
    ),
    "session-killed": Configuration("a cut, a kill, a new process", Sessions, "cut kill restart"),
    "session-half-open": Configuration(
        "a lost connection that the server believes in", Sessions, "cut", {"half_open": True}
    ),
    "session-second": Configuration("a second connection, a cut, a kill", Sessions, "cut kill join"),
    "limit": Configuration("three events, two claims, settles", Limit, "", {"events": 3}),
    "limit-leases": Configuration("two events, a lapse beside a heartbeat", Limit, "lapse beat"),
    "entering": Configuration("two open transactions beside settles", Entering),
    "duplicate": Configuration("a repeated delivery as the first one ends", Duplicates),
    "suspension": Configuration("a signal beside a suspension", Suspension),
    "steps": Configuration("a step of two attempts at once", Steps),
    "children": Configuration("the last two children", Children),
    "cursor": Configuration("a late commit behind a cursor", Cursor),
}
"""Explored in ``make test``."""

LARGE = {
    "group-large": Configuration("three events, two workers", Group, ALL, {"events": "aaa"}),
    "group-late-large": Configuration(
        "three events in any order", Group, "fail lapse", {"events": "aaa", "in_order": False}
    ),
    "limit-large": Configuration("three events", Limit, "lapse lapse beat beat", {"events": 3}),
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
}
"""By name. One is the queue's still, and documented: claims_linger."""

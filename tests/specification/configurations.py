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
    size: dict[str, Any] = {}  # noqa: RUF012 - it is never changed

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
    about: str
    broken: str
    """Words of the promise that it breaks. ``forever``: something waits forever."""
    decided: str
    """The decision that has the rule of today."""


_OLD_RULES = """
no_number | group | a settle compares the event's id, not the number of the claim | does not stand | 0004
no_standing_claim | group | a settle compares the number, not whether the claim stands | does not stand | 0004
swept_as_seen | group-swept | a sweep does not look again once it holds the lock | while it ran | 0004
lapsed_heads_stay | group | a lapsed head does not step down for a retry | overtook | 0005
released_overtaken | group | a lapsed head does not step down for what was released before it | overtook | 0005
held_members_stay | group | a claim of a lapsed head leaves the members to the former worker | in the hands of | 0005
members_spent | group-poison | members of a lapsed claim lose the attempt | lost an attempt | 0005
skipped_members | group-limited | a claim skips a member that it may not take, and goes on | overtook | 0005
gone_at_once | group-teams | a kind counts as unhandled while its worker is replaced | overtook | 0005
elected_by_order | group-unhandled | the first event is the head, handled or not | forever | 0005
idle_heads_stay | group-paused | an idle head does not step down for a retry of a resumed kind | overtook | 0005
unfenced_claims | group-locked | a lapsed group is claimed although a member is locked | in the hands of | 0012
joined_unlocked | entering | a member commits without the lock of its head | without a head | 0012
joined_at_insert | entering | a member locks its head as it is stored, not at the commit | forever | 0012
history_first | duplicate | an insert looks into history before it stores | stored twice | 0001
no_peeks | cursor | nothing looks behind cursors | forever | 0003
claims_undo_peeks | cursor | a claim under way moves a cursor that a peek has set back | forever | 0026
refused_dropped | session | a settle that the server refuses is not sent again | forever | 0026
claims_elsewhere | session | claims go over connections without the session's lock | taken for dead | 0035
fixed_key | session-half-open | each worker has one key for all its sessions | forever | 0035
kept_claims | session | a reopened worker keeps claims that it does not know | forever | 0035
released_once | session | it releases them at once, and not once more late | forever | 0035
without_moment | session | the late release covers new claims, too | is released | 0035
retires_anyway | session | a worker that could not settle leaves the list | forever | 0035
predecessor_kept | session-killed | a new process of a name does not end its predecessor's claims | forever | 0035
locks_first | session | a watcher reads locks before the list of workers | reported lost | 0035
rescued_as_seen | session | a rescue does not look again whether the session is open | taken for dead | 0035
claims_linger | session | a claim over a replaced connection outlasts the grace | taken for dead | 0035
joined_alone | session-second | a second connection joins a session that has ended | taken for dead | 0080
no_turns | limit | claims of a key do not take turns | run at once | 0040
looked_first | limit | a claim deletes the key's notes after its look | forever | 0040
no_second_look | limit | a claim that leaves events waiting does not look again by itself | forever | 0040
late_limits | limit | a worker claims before it declares its limits | run at once | 0040
lapsed_is_free | limit-leases | a lapsed run does not count, though heartbeats are under way | run at once | 0040
not_read_again | limit-leases | without heartbeats under way, lapsed runs are not read again | run at once | 0040
clock_first | limit-leases | a heartbeat reads the clock before it takes its lock | run at once | 0040
lapsed_renewed | limit-leases | a heartbeat renews a lapsed run of a limited kind | run at once | 0040
signals_unlocked | suspension | a signal and a suspension do not lock the event | forever | 0046
unfenced_steps | steps | a step is stored without a look at the claim | is stored | 0046
cancelled_extended | group-hangs | heartbeats extend a claim that was asked to be cancelled | forever | 0047
siblings_looked_for | children | the end of a child looks for live siblings, and counts nothing | forever | 0050
"""
OLD_RULES = {
    name: OldRule(*rest) for name, *rest in (line.split(" | ") for line in _OLD_RULES.strip().splitlines())
}
"""By name. Two are the queue's still, and documented: claims_linger and released_overtaken."""

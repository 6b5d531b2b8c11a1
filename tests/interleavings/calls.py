"""The calls whose orders are tried, and the queue in which they meet.

A call is done to the model and the database at once (``tests/sql/durable_machine.py``); the statements that this sends
are what a session sends later. Calls that the model does not know are statements alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from surelane.calls import Connection
from tests.sql.durable_machine import DurableMachine
from tests.sql.machine import KINDS, at
from tests.sql.model import LEASE

CALM = "slack.calm"
SILENT = 301
"""Seconds since the last heartbeats, so that a rescue ends the claims."""


class Recorder:
    """A connection that keeps what is sent over it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.sent: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def sent(statement: str, *arguments: Any) -> Any:
            self.sent.append((statement, arguments))
            return getattr(self.connection, method)(statement, *arguments)

        return sent


class Oracle(DurableMachine):
    """The queue and its model, with events that have names: their item keys."""

    def build(self) -> None:
        """Fill the queue: events in every state, each with something that calls can meet at."""
        self.run(self.queue.execute("delete from agent.worker; delete from agent.request"))
        for key, group, attempts in (("h1", "h", None), ("h2", "h", None), ("spent", None, 1)):
            self.add("slack.parked", key, group, attempts)
        self.claim_all("theirs")
        for key in ("ended", "failing", "held"):
            self.add(CALM, key, "k" if key != "ended" else None)
        self.add(CALM, "behind", "k")
        self.claim_all("ours")
        self.settle_a_claim(self.claim_of("ended"), False, "complete", 0)
        self.settle_a_claim(self.claim_of("failing"), False, "fail", 4 * LEASE)
        for key in ("held", "behind"):
            self.settle_a_claim(self.claim_of(key), False, "release", 0)
        self.let_time_pass(LEASE)
        for key, group in (("g1", "g"), ("g2", "g"), ("r", None), ("s", None), ("parent", None)):
            self.add(CALM, key, group)
        for key in ("two1", "two2"):
            self.add("slack.two", key, None)
        self.claim_all("ours")
        self.suspend_a_handler(self.claim_of("s"), False, [("wait", "a", 1, False)], False)
        self.run_a_child(self.claim_of("parent"), False, "a")
        self.claim_all("ours")
        self.suspend_a_handler(self.claim_of("parent"), False, [("child", "a", 1, False)], False)
        self.add(CALM, "g3", "g")
        self.add(CALM, "u", None)
        self.add("slack.two", "two3", None)
        for key, group in (("w1", "w"), ("w2", "w"), ("v1", "v")):
            self.add(CALM, key, group)
        self.reschedule_a_job("v1", 24 * 3600)
        self.let_time_pass(SILENT)
        self.run(
            self.queue.execute(
                "insert into agent.worker (name, kinds, version, session, seen_at) values ('w1', $1, '', 0, $2)",
                KINDS,
                at(self.model.now),
            )
        )
        self.both_are_the_same()
        self.known = {str(event.item_key): event.id for event in self.model.live.values()}
        (child,) = [key for key in self.known if key.startswith("parent:")]
        self.known["child"] = self.known.pop(child)
        self.places = {
            key: max(nth for nth, (of, _) in enumerate(self.claims) if of == identity)
            for key, identity in self.known.items()
            if identity in dict(self.claims)
        }

    def add(self, kind: str, key: str, group: str | None, attempts: int | None = None) -> None:
        self.enqueue_a_job(kind, group, key, None, 0, attempts)

    def claim_of(self, key: str) -> int:
        """Return the place of an event's latest claim among all."""
        every = {event.item_key: event.id for event in self.model.live.values()}
        return max(nth for nth, (identity, _) in enumerate(self.claims) if identity == every[key])

    def some(self, number: int) -> Any:
        """Choose by id, not by place."""
        return self.model.live.get(number)


class Call(NamedTuple):
    """Something that a worker, ingest, a program or a person asks of the queue, in one transaction."""

    do: Callable[[Oracle], object]
    modelled: bool = True
    again: bool = False
    """It steps over what is locked, and comes again by itself: claims, sweeps."""


def _settle(key: str, how: str) -> Call:
    return Call(lambda o: o.settle_a_claim(o.places[key], False, how, 0))


def _plain(statement: str, *arguments: Any, again: bool = False) -> Call:
    """A call that the model does not know. ``:key`` is the id of the event with that key."""

    def do(o: Oracle) -> None:
        named = statement
        for key, identity in o.known.items():
            named = named.replace(f":{key};", str(identity))
        o.run(o.queue.fetch(named, *arguments))

    return Call(do, False, again)


CALLS: dict[str, Call] = {
    # ingest
    "insert_event": Call(lambda o: o.insert_a_slack_event(1, CALM, "g")),
    "insert_events": Call(
        lambda o: o.insert_a_batch_of_slack_events([(2, CALM, "h"), (1, CALM, "g"), (3, CALM, "new")])
    ),
    "insert_events two": Call(
        lambda o: o.insert_a_batch_of_slack_events([(3, CALM, "g"), (4, "slack.two", "new"), (1, CALM, None)])
    ),
    "fire_trigger": _plain("select * from agent.fire_trigger('hook', 'id', '{}')"),
    # programs
    "enqueue": Call(lambda o: o.enqueue_a_job(CALM, "g", "i", None, 0, None)),
    "enqueue new group": Call(lambda o: o.enqueue_a_job(CALM, "new", "j", None, 0, None)),
    "enqueue limited": Call(lambda o: o.enqueue_a_job("slack.two", None, "l", None, 0, None)),
    "enqueue replace": _plain(
        "select agent.enqueue('slack.calm', '{\"a\": 1}', _item_key => 'u', _on_duplicate => 'replace')"
    ),
    "enqueue_jobs": _plain(
        """select * from agent.enqueue_jobs('[{"kind": "slack.calm", "item_key": "i", "group_key": "new"},
        {"kind": "slack.calm", "item_key": "k", "group_key": "g"}]')"""
    ),
    "signal_event": Call(lambda o: o.send_a_signal(o.known["s"], "a")),
    "reschedule_event": Call(lambda o: o.reschedule_a_job("u", 400)),
    "reschedule_event g3": Call(lambda o: o.reschedule_a_job("g3", 400)),
    "delete_event g1": Call(lambda o: o.delete_an_event(o.known["g1"])),
    # workers
    "claim_events": Call(lambda o: o.claim_all("all"), again=True),
    "claim_events ours": Call(lambda o: o.claim_all("ours"), again=True),
    "complete g1": _settle("g1", "complete"),
    "fail g1": _settle("g1", "fail"),
    "release g2": _settle("g2", "release"),
    "extend_leases g2": _settle("g2", "extend"),
    "complete h1": _settle("h1", "complete"),
    "release h1": _settle("h1", "release"),
    "extend_leases h2": _settle("h2", "extend"),
    "complete two1": _settle("two1", "complete"),
    "extend_leases two1": _settle("two1", "extend"),
    "complete r": _settle("r", "complete"),
    "suspend r": Call(lambda o: o.suspend_a_handler(o.places["r"], False, [("wait", "a", 1, False)], False)),
    "signal r": Call(lambda o: o.send_a_signal(o.known["r"], "a")),
    "take_signal r": Call(lambda o: o.take_a_signal(o.places["r"], False, "a", 1, None)),
    "store_step r": Call(lambda o: o.store_a_step(o.places["r"], False, "a", False)),
    "note_event r": _plain("select agent.note_event(:r;, 1, '{\"a\": 1}')"),
    "complete child": _settle("child", "complete"),
    "fan_out r": _plain(
        """select * from agent.settle(array[:r;], array[1], '{fan_out}', array['{"continuation":
        {"kind": "slack.calm", "item_key": "then"}, "children": [{"kind": "slack.calm", "item_key": "c"}]}'::jsonb])"""
    ),
    "sweep_events": Call(lambda o: o.sweep(), again=True),
    "rescue_events": Call(lambda o: o.rescue(), again=True),
    "rescue_worker": Call(lambda o: o.rescue_worker(), again=True),
    "release_unknown": _plain("select * from agent.release_unknown('w1', '{}', '{}')", again=True),
    "open_session": _plain("select agent.open_session('w1', '', true)"),
    "introduce_worker": _plain("select agent.introduce_worker('w1', '', '{slack.calm}', '{}', 1, 1)"),
    "announce_worker": _plain("select agent.announce_worker('w1', '{slack.calm}', '')", again=True),
    "retire_worker": _plain("select agent.retire_worker('w1')"),
    "declare_limits": _plain(
        "select agent.declare_limits('w1', '{slack.two}', '{\"slack.two\": {\"concurrency\": 3}}')"
    ),
    # people
    "cancel_job g1": Call(lambda o: o.cancel_an_event(o.known["g1"])),
    "cancel_job h1": Call(lambda o: o.cancel_an_event(o.known["h1"])),
    "cancel_job parent": Call(lambda o: o.cancel_an_event(o.known["parent"])),
    "cancel_jobs": _plain("select * from agent.cancel_jobs(array[:g1;, :g3;, :u;, :r;])"),
    "rerun_events": Call(lambda o: o.requeue_an_ended_event(0)),
    "pause_kind": Call(lambda o: o.pause(True)),
    "resume_kind": Call(lambda o: o.pause(False)),
    "set_limit": _plain("select agent.set_limit('slack.two', 3, null, null, null)"),
}
"""By name."""


def _entering(do: Callable[[Oracle], object]) -> Call:
    """A call that enters a group at once: it takes the locks that others take at their commit, and keeps them."""

    def entered(o: Oracle) -> None:
        do(o)
        o.run(o.queue.execute("set constraints agent.member_joins immediate"))

    return Call(entered)


IDLE: dict[str, Call] = {
    "claim": Call(lambda o: o.claim_all("all"), again=True),
    "enqueue w": _entering(lambda o: o.enqueue_a_job(CALM, "w", "i", None, 0, None)),
    "insert_events w": _entering(
        lambda o: o.insert_a_batch_of_slack_events([(1, CALM, "w"), (2, CALM, "v")])
    ),
    "delete w1": Call(lambda o: o.delete_an_event(o.known["w1"])),
    "delete w1 by hand": _plain("delete from agent.event where id = :w1;"),
    "delete w2 by hand": _plain("delete from agent.event where id = :w2;"),
    "cancel w1": Call(lambda o: o.cancel_an_event(o.known["w1"])),
    "enqueue v": _entering(lambda o: o.enqueue_a_job(CALM, "v", "j", None, 0, None)),
    "enqueue v soon": _entering(lambda o: o.enqueue_a_job(CALM, "v", None, None, 3600, None)),
    "delete v1": Call(lambda o: o.delete_an_event(o.known["v1"])),
    "delete v1 by hand": _plain("delete from agent.event where id = :v1;"),
}
"""Calls that meet at groups without a running event: w, and v, whose only event is scheduled."""

EXCEPTIONS = {
    ("rerun_events", "rerun_events"): "it answers which events it moved: none that another one has locked",
    (
        "claim_events",
        "release h1",
    ): "the lapsed rest of the group steps down for h1, which the next claim takes",
}
"""Pairs that no serial order explains, and why that is right."""

CORE = (
    *(
        "insert_events",
        "enqueue",
        "claim_events",
        "complete g1",
        "release g2",
        "extend_leases h2",
        "complete two1",
    ),
    *("suspend r", "signal r", "sweep_events", "rescue_worker", "cancel_job g1", "pause_kind"),
)
"""Those whose pairs are tried without the marker ``interleavings``, too."""

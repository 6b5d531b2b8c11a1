"""A simulated fleet: ingest stores events, workers come, go, hang and die, and after every step promises are checked.

What must hold for every seed:

- An acknowledged event ends once: there is one row of it in history.
- The events of a group begin in the order in which they happened, if they were stored in that order, and a retry comes
  before all that waits. No two of its handlers run at once on hosts whose network and process were well.
- A limit is never exceeded, by handlers that run at once on such hosts nor by claims in a period.
- A step whose result was stored is not run again. What is suspended wakes.
- A question to people is posted, by hosts that were well only once, and the first click that counts stays its answer.
  Where its thread is gone, its event is cancelled, and nothing is left in the channel.
- What must hold of mentions stands in :mod:`tests.simulation.mentions`.
- Once a disturbance is over, no claim stands without a hand for longer than :data:`RESCUED` seconds.
  Where a machine vanished, that is :data:`SWEPT` seconds after five minutes without a heartbeat.
- Once it is over, and while connections are half-open, no event waits for longer than :data:`IDLE` seconds beside idle
  workers.
- Once all trouble is over, everything ends within :data:`BOUND` seconds.
"""

import asyncio
import json
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import inf
from random import Random
from typing import Any, cast

from surelane.codec import SEALED
from surelane_dev.testing.fleets import face
from surelane_dev.testing.fleets.face import simulated
from surelane_dev.testing.fleets.virtual import EPOCH, HERE
from surelane_dev.testing.fleets.wire import FaultRates, Host, Net
from surelane_encryption.envelopes import key_id_of
from surelane_service.engine import DEAD_FOR
from surelane_worker.builtin import questions
from surelane_worker.running import watching
from surelane_worker.worker_settings import WorkerSettings
from tests.simulation.database import Database
from tests.simulation.faults import BY_NAME
from tests.simulation.features import FEATURES
from tests.simulation.mentions import KINDS
from tests.simulation.plan import TROUBLE, Fault, Plan, Post, Version, team_of, thread_of
from tests.simulation.senders import KEY, Senders
from tests.simulation.slack import Slack
from tests.simulation.witness import PERIOD, RATE, BrokenError, Witness

BOUND = 900.0
"""Seconds in which all ends once the trouble is over. A lease that the clock's jump prolonged may have to end."""
RESCUED = 45.0
"""Seconds: longer than the grace of a lost session, which is thirty seconds while most sessions are lost."""
SWEPT = 85.0
"""Seconds: longer than the longest pause between two sweeps. They rescue what has been silent for five minutes."""
IDLE = 20.0
"""Seconds: longer than an idle worker needs to find that its connections are half-open, which is ten."""
LOOKED_AT = 60.0
"""Seconds after which a claim looks at a full limit again: a claim beside a rescue may still have counted its runs."""
LEASE = 600.0
SETTINGS = {
    "DATABASE_URL": "postgresql://simulated",
    "SURELANE_LEASE": f"{LEASE:g}s",
    "SURELANE_SESSION_GRACE": "3s",  # longer than a broken connection takes to come back over this network
    "SURELANE_CONCURRENCY": "3",
    "SURELANE_BACKOFF_BASE": "4s",
    "SURELANE_BACKOFF_CAP": "20s",
    "SURELANE_MAX_ATTEMPTS": "50",
    "SURELANE_DRAIN_TIMEOUT": "10s",
    "SURELANE_MAX_VT_AGE": "1d",
}
watching.LONG = 1.0  # no event is cancelled here, and a look each 0.2 seconds took a tenth of the time
EVENTS = """
select e.id, e.kind, e.item_key, e.claimed_by, array_upper(e.claimed, 1) as claim, w.died_at is not null as taken
, extract(epoch from e.heartbeat_at)::float8 as beat, e.claimed_by is not null and e.vt > agent.clock() as held
, e.head and e.claimed_by is null and e.vt <= agent.clock() and not k.paused and e.cancelled_by is null
    and e.lane < 60 as waits
, case when not e.head or e.claimed_by is not null then null
    when e.group_key is not null and agent.outranked(e, agent.claimable_kinds(), agent.clock())
        then 'the first of a group leads it'
    when e.cancelled_by is not null and e.vt <= agent.clock() and not k.paused then 'what was cancelled ends'
    when e.lane >= 60 and agent.event_workspace(e.event) not in (select workspace from agent.arriving)
        then 'what a hold left is free' end as unswept
, case when e.attempts > cardinality(e.claimed) then 'it has more attempts than claims'
    when e.cancelled_by is not null and e.claimed_by is null
        and (e.attempts = 0 or e.vt > agent.clock() + interval '5 seconds')
        then 'it is being cancelled, and no sweep finds it'
    when e.waits_for = 0 and e.vt = 'infinity' and e.claimed_by is null and e.continuation_id is null
        and not exists (select from agent.step as s where s.event_id = e.id) then 'it waits for nothing' end as unsound
from agent.event as e join agent.kind as k using (kind) left join agent.worker as w on w.name = e.claimed_by
"""
LIMITED = {"slack.few", "slack.paced", "keyed"}
PACED = "select id, claimed from agent.event_hist where kind = 'slack.paced'"


@dataclass(eq=False)
class Member(face.FleetWorker):
    """A worker of the fleet."""

    version: Version = field(default_factory=Version)


class Fleet(Senders):
    """One simulation."""

    KEYS = """
    select coalesce(item_key, id::text) from agent.event
    union select coalesce(item_key, id::text) from agent.event_hist
    """

    def __init__(self, plan: Plan, net: Net, log: Callable[[str], None]) -> None:
        super().__init__(net, log, encrypted=plan.encrypted)
        self.plan = plan
        self.witness = Witness(plan.seed, self.loop.time, self.log, self.sends)
        self.witness.lease = LEASE
        self.witness.versions = lambda: [member.version for member in self.members.values()]
        self.members: dict[str, Member] = {}
        self.vanished: set[str] = set()
        self.held: set[str] = set()
        """The workspaces that a move holds."""
        self.disturbed = 0.0
        """When the last disturbance ends."""
        self.hushed = 0.0
        """Until when nothing else breaks: what no host is told of must show by itself."""
        self.features = {name: FEATURES[name](self) for name in plan.features}
        self.feature_kinds = {kind for each in self.features.values() for kind in each.kinds}
        self._names = 0
        self._lonely: dict[tuple[int, int], float] = {}
        """Since when each claim has no hand."""
        self._unswept: dict[tuple[int, str], float] = {}
        """Since when each event breaks a promise that sweeps see to."""
        self._idle: dict[int, float] = {}
        """Since when each event waits."""
        self._limited_until = 0.0
        """Until when runs could hold the places of limits, for which events then wait by right."""
        self._sparing = False

    async def run(self) -> None:
        """Let a fleet work through trouble, then let it end its work, and check what must hold.

        Raises:
            BrokenError: a promise was broken.
        """
        try:
            async with AsyncExitStack() as stack, self.ingest() as store, asyncio.TaskGroup() as group:
                self.slack = Slack(self.net, self.witness, partial(self._clicked, store))
                if self.plan.encrypted:
                    self.slack.mentions.count = 0  # their checks read what is stored
                stack.enter_context(self.slack.mentions.settings())
                for version in self.plan.workers:
                    group.create_task(self._later(self.plan.starts, self._start, version))
                posts = [
                    group.create_task(self._later(post.at, self.post, store, post))
                    for post in self.plan.posts
                ]
                faults = [
                    group.create_task(self._later(each.at, self._break, each)) for each in self.plan.faults
                ]
                posts.append(group.create_task(self.slack.mentions.talk()))
                group.create_task(self._later(0, self._trouble, posts, faults))
            await self.check()
        except ExceptionGroup as error:
            raise _first(error) from None
        finally:
            for member in list(self.members.values()):
                await member.host.die()
            await self.program.die()

    async def _later(self, at: float, act: Callable[..., Awaitable[None]], *given: object) -> None:
        await asyncio.sleep(at)
        await act(*given)

    async def _break(self, fault: Fault) -> None:
        if self.members and self.loop.now >= self.hushed:
            if fault.name != "vanish":
                self.disturb()
            await BY_NAME[fault.name](self, fault)

    async def _trouble(self, posts: list[asyncio.Task[None]], faults: list[asyncio.Task[None]]) -> None:
        while self.loop.now < TROUBLE or not all(fault.done() for fault in faults):
            self.net.faults = FaultRates() if self.loop.now < self.hushed else self.plan.network
            if self.net.faults == FaultRates():
                await self.look()
            await asyncio.sleep(2)
        self.net.faults = FaultRates()
        if self.database.jump < 0:
            self.database.jump = 0.0
        self.log("the trouble is over")
        if not any(member.version.spare and not member.stop.is_set() for member in self.members.values()):
            self.start_worker(Version())
        if self.plan.network != FaultRates():
            self.disturb()
        await self._calm(posts)

    async def _calm(self, posts: list[asyncio.Task[None]]) -> None:
        """Wait until everything has ended."""
        ends = max(TROUBLE, self.disturbed) + BOUND + max(0.0, max(self.jumps, default=0.0))
        while not (await self.look() and all(post.done() for post in posts)):
            if self.loop.now > ends:
                rows = await self.database.see(
                    "select item_key, kind, attempts, vt - agent.clock() as due, claimed_by, group_key from agent.event"
                )
                raise BrokenError("everything ends", f"{[dict(row) for row in rows]}")
            await asyncio.sleep(2 if self.loop.now < self.disturbed + 2 * IDLE else 5)
        for person in self.slack.people:
            person.cancel()

    def disturb(self, seconds: float = 0.0) -> None:
        """Note that something is out of order for some seconds: what takes its time begins to count after that."""
        self.disturbed = max(self.disturbed, self.loop.now + seconds)

    @property
    def jumps(self) -> list[float]:
        return [1200.0 * (fault.name == "leap") + 20.0 * (fault.name == "jump") for fault in self.plan.faults]

    def pick(self, fault: Fault) -> str:
        """Return the name of the worker that a fault meets."""
        return list(self.members)[int(fault.pick * len(self.members))]

    def ill(self, name: str, seconds: float) -> None:
        """Note that others may take over what a worker runs, from now on for some seconds."""
        self.witness.ill[name] = max(self.witness.ill.get(name, 0.0), self.loop.now + seconds)

    def all_ill(self, seconds: float) -> None:
        for name in self.members:
            self.ill(name, seconds)

    async def post(self, store: Callable[[str, str], Any], post: Post) -> None:
        if post.kind in self.features:
            await self.features[post.kind].use(post)
            return
        if post.kind == "keyed":
            await self._replace_jobs(post)
            return
        if post.kind == "later":
            await self.schedule(post.key, post.group, 1 + 9 * post.size)
            return
        text = json.dumps(_envelope(post, EPOCH + self.loop.now))
        deliveries = [self._deliver(store, post.key, text) for _ in range(1 + post.again)]
        if post.kind == "paced":
            for nth in range(3):
                more = replace(post, group=None)
                key = f"{post.key}-{nth}"
                deliveries.append(
                    self._deliver(store, key, json.dumps(_envelope(more, EPOCH + self.loop.now, key)))
                )
        await asyncio.gather(*deliveries)
        if post.kind == "asks":
            await asyncio.sleep(20 * post.size)
            await self.signal(post.key)

    async def look(self) -> bool:
        """Check that each claim is in the hand of a worker that lives, and that nothing waits beside idle workers.

        Return whether nothing is left.
        """
        if self.witness.broken:
            raise self.witness.broken[0]
        if self.database.down:
            return False
        now = self.loop.now
        rows = await self.database.see(EVENTS)
        if unsound := [f"{row['item_key']}: {row['unsound']}" for row in rows if row["unsound"]]:
            raise BrokenError("every event is in a state that it leaves", f"{unsound}")
        unswept = [(row["id"], row["unswept"]) for row in rows if row["unswept"]]
        self._unswept = {each: self._unswept.get(each, now) for each in unswept}
        for (head, promise), since in self._unswept.items():
            if now > max(since, self.disturbed) + SWEPT:
                raise BrokenError(promise, f"{head}")
        lonely = self._hands(now, [row for row in rows if row["held"]])
        self._waits(now, {row["id"]: row["kind"] for row in rows if row["waits"]}, lonely)
        return not rows

    def _hands(self, now: float, rows: list[Any]) -> bool:
        lonely = {}
        for row in rows:
            claim, name = (row["id"], row["claim"]), row["claimed_by"]
            member = self.members.get(name)
            if member is None or member.worker is None or claim not in member.worker.leases.known():
                since = lonely[claim] = self._lonely.get(claim, now)
                # A worker whose claim's answer was lost, and that met a locked event, may have stopped before the
                # lock ended, if the server's clock went back meanwhile.
                silent = name in self.vanished or (
                    self.witness.backwards and row["id"] in self.witness.locked
                )
                # Of a worker that is taken for dead a sweep ends what was locked, or had lapsed by a clock ahead.
                within = SWEPT if row["taken"] else RESCUED
                seen = max(
                    row["beat"] - EPOCH - self.database.jump + DEAD_FOR.total_seconds(), self.disturbed
                )
                if now > (seen + SWEPT if silent else max(since, self.disturbed) + within):
                    how = f"{row['item_key'] or row['id']} is claimed by {name}, which does not have it"
                    raise BrokenError("no claim without a hand", how)
        self._lonely = lonely
        return bool(lonely)

    def _waits(self, now: float, waiting: dict[int, str], lonely: bool) -> None:
        self._idle = {each: self._idle.get(each, now) for each in waiting}
        able = [
            name
            for name, member in self.members.items()
            if not (member.stop.is_set() or member.host.frozen or member.host.cut_off)
        ]
        idle = [name for name in able if self.witness.idle_for(name) > IDLE]
        passed = set() if any(self.members[name].version.spare for name in idle) else {"slack.spare"}
        if len(idle) < len(able) or lonely:
            self._limited_until = now  # what is limited may wait for what runs
        late = [
            each
            for each, since in self._idle.items()
            if now - max(since, self.disturbed) > IDLE
            and (waiting[each] not in LIMITED or now - self._limited_until > IDLE + LOOKED_AT)
        ]
        if idle and (left := [each for each in late if waiting[each] not in passed]):
            how = f"{left} of {[waiting[each] for each in left]} beside {idle}"
            raise BrokenError("nothing waits beside idle workers", how)

    async def check(self) -> None:
        """Check what must hold at the end."""
        self.witness.check()
        everything = await self.database.see("select * from agent.event_hist")
        rows = [row for row in everything if row["kind"] not in self.feature_kinds]
        ended = Counter(row["item_key"] or str(row["id"]) for row in everything)
        # An event that was sent twice may run twice, and so may its children: their keys begin with its own.
        sent = {key: max(1, self.sends[key], self.sends[key.rpartition("-")[0]]) for key in ended}
        if twice := [key for key, count in ended.items() if count > sent[key]]:
            raise BrokenError("one row in history", f"{twice}")
        if lost := sorted(self.acknowledged - ended.keys() - self.slack.mentions.keys):
            raise BrokenError("nothing acknowledged is lost", f"{lost}")
        await self.slack.mentions.check(self.database.see)
        gone = self.slack.unanswered
        others = [row for row in rows if row["kind"] not in KINDS.values()]
        if failed := [
            row["item_key"] for row in others if row["outcome"] != _outcome(row["item_key"] in gone)
        ]:
            raise BrokenError("everything completes", f"{failed}")
        for name, feature in self.features.items():
            own = [row for row in everything if row["kind"] in feature.kinds]
            for how in feature.wrong(own) if not self.witness.forgot else ():
                raise BrokenError(f"what {name} promises", how)
        self._check_ends(everything)
        if self.plan.encrypted:
            await self._check_sealed([row for row in everything if row["kind"] != "tick"])
        if left := self.slack.check():
            raise BrokenError("nothing is left beside a thread that is gone", left)
        if not self.witness.backwards:
            await self._check_rate()

    def _check_ends(self, rows: list[Any]) -> None:
        for row in rows:
            ended = row["finished_at"].timestamp() - EPOCH
            if (
                self.witness.claims.get(row["id"], 0.0) > ended + 0.1
                and not (self.witness.backwards or self.witness.forgot)
                and row["item_key"] not in self.witness.reran
            ):
                raise BrokenError("what has ended does not begin", f"{row['item_key']} ended at {ended:.1f}")

    async def _check_sealed(self, rows: list[Any]) -> None:
        keys = {
            row["id"]: row["workspace"] for row in await self.database.see("select * from agent.data_key")
        }
        for row in rows:
            event = json.loads(row["event"])
            sealed, team = event.get(SEALED, ""), event.get("team_id") or event.get("team", {}).get("id")
            if "said" in event or (team and keys.get(sealed and key_id_of(b64decode(sealed))) != team):
                raise BrokenError("what is stored has the key of its team", row["event"])

    async def _check_rate(self) -> None:
        claims = sorted(at for row in await self.database.see(PACED) for at in row["claimed"])
        for first, beyond in zip(claims, claims[RATE:], strict=False):
            if beyond - first < PERIOD:
                raise BrokenError("limits are never exceeded", f"{RATE + 1} claims within {beyond - first}")

    async def _start(self, version: Version) -> None:
        self.start_worker(version)

    def start_worker(self, version: Version) -> None:
        self._names += 1
        host = Host(f"worker-{self._names}", version.skew)
        self.log(f"{host.name} starts: {version}")
        self.witness.ended[host.name] = self.loop.now
        member = self.members[host.name] = Member(host, version=version)
        handlers = self.witness.handlers(host, version, self.plan.kinds)
        for feature in self.features.values():
            feature.handle(handlers.on, host, Random(f"{host.name} {feature.kinds} {self.plan.seed}"))
        self.slack.mentions.include(handlers, host)
        if "questions" in self.plan.kinds:  # last, as in a worker: they take the edits that are left
            handlers.include(questions.handlers)
        context = copy_context()
        context.run(HERE.set, host)
        settings = _settings(self.plan.encrypted, "hasty" in self.features)
        work = member.work(self.net, settings, handlers, self.slack)
        member.task = self.loop.create_task(work, context=context)
        self.note_spare()

    def drain(self, name: str) -> None:
        """Stop a worker as SIGTERM does."""
        self.log(f"{name} drains")
        member = self.members[name]
        member.stop.set()
        member.task.add_done_callback(lambda _: self.members.pop(name, None))
        self.note_spare()

    def note_spare(self) -> None:
        """Note when no worker handles the kind ``spare``. For 90 seconds after the last one it holds up others."""
        handled = any(
            member.version.spare and not (member.stop.is_set() or member.host.frozen or member.host.cut_off)
            for member in self.members.values()
        )
        if not handled and not self._sparing:
            self._sparing = True
            self.witness.excused["spare"].append((self.server_now(), inf))
        if handled and self._sparing:
            self.witness.excused["spare"][-1] = self.witness.excused["spare"][-1][0], self.server_now() + 5
            self._sparing = False


@cache
def _settings(encrypted: bool, hasty: bool) -> WorkerSettings:
    more = {"SURELANE_ENCRYPTION_KEYS": KEY, "SURELANE_ENCRYPT_EVENTS": "true"} if encrypted else {}
    more |= {"SURELANE_SWEEP_INTERVAL": "10s"} if hasty else {}
    return WorkerSettings(**cast("Any", SETTINGS | more))


def _outcome(gone: bool) -> str:
    return "cancelled" if gone else "completed"


def _first(group: ExceptionGroup[Any]) -> BaseException:
    """Return the promise that was broken, if one was, else the first error."""
    errors = [_first(each) if isinstance(each, ExceptionGroup) else each for each in group.exceptions]
    return next((error for error in errors if isinstance(error, BrokenError)), errors[0])


def _envelope(post: Post, at: float, key: str = "") -> dict[str, Any]:
    inner: dict[str, Any] = {"type": post.kind, "event_ts": f"{at:.6f}"}
    if post.group is not None:
        inner |= {"channel": "C1", "ts": f"{int(EPOCH)}.{post.number:06}", "thread_ts": thread_of(post.group)}
    return {
        "type": "event_callback",
        "team_id": team_of(post.group),
        "event_id": key or post.key,
        "event_time": int(EPOCH),
        "event": inner,
    }


async def simulate(plan: Plan, database: Database, log: Callable[[str], None]) -> None:
    """Run the simulation of a plan.

    Raises:
        BrokenError: a promise was broken.
    """
    async with simulated(database, plan.seed) as net:
        await Fleet(plan, net, log).run()

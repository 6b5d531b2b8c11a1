"""The faults of operations, each as something done to a fleet. A plan uses these names."""

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from random import Random
from typing import TYPE_CHECKING

import asyncpg

from surelane_dev.testing.fleets.database import Refusal
from tests.simulation.moves import hold, move
from tests.simulation.plan import GROUPS, Fault, thread_key
from tests.simulation.witness import BrokenError

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

ILL = 60.0
"""Seconds after a host's trouble in which its handlers may still run what others have taken over."""
FENCED = 320.0
"""Seconds after which a host has stopped what others have taken over, although no heartbeat told it."""
HUSH = 45.0
"""Seconds for which nothing else breaks where no host is told of a fault."""
CALM, SHORT, BLINK = 15.0, 2.0, 9.8
"""Seconds without another fault, then for which a worker has lost its session, then from a restart on: its grace."""
LAG = 3.1
"""Seconds of commits that a standby that takes over has lost at most."""
LOCKS = (
    "select id from agent.event where claimed_by is not null order by id limit {most} for update skip locked",
    "select id from agent.event where claimed_by is null order by vt, id limit {most} for update skip locked",
    "select id from agent.event where head order by id desc limit {most} for update skip locked",
    "select 0 as id from agent.kind_limit for update skip locked",
    "select 0 as id from agent.limit_state for update skip locked",
    "select 0 as id from agent.worker for update skip locked",
    "select 0 as id from agent.kind for update skip locked",
)
PARTS = ("agent.insert", "agent.claim_events", "agent.settle", "agent.extend_leases", "step")
"""Statements that a server may refuse while it takes others."""
STATES = (
    *(
        "08006",
        "0A000",
        "22001",
        "22012",
        "23505",
        "23514",
        "25P02",
        "28000",
        "38000",
        "3D000",
        "3F000",
        "40001",
    ),
    *(
        "40P01",
        "42501",
        "42883",
        "42P01",
        "44000",
        "53100",
        "53200",
        "53300",
        "53400",
        "55000",
        "55006",
        "55P03",
    ),
    *(
        "57014",
        "57P01",
        "57P03",
        "58030",
        "58P01",
        "72000",
        "F0000",
        "HV000",
        "P0001",
        "XX000",
        "XX001",
        "XX002",
    ),
)
"""SQLSTATEs of a server's state, its settings, its rights, and what others made in it: of each class some."""
ALONE = """
select group_key from agent.event where group_key is not null
group by group_key having count(*) = 1 and bool_and(retrying and vt > agent.clock() + interval '3 seconds')
"""
DEAD = "select from agent.worker where name = $1 and died_at is not null"
OPEN = "select from agent.worker where name = $1 and died_at is null and session = any(agent.open_sessions())"
RUNNING_ON = "select id from agent.event where claimed_by = $1 and vt > agent.clock() for update skip locked"


async def kill(fleet: "Fleet", fault: Fault) -> None:
    """Kill a worker with everything that it runs, and start another."""
    name = fleet.pick(fault)
    fleet.log(f"{name} is killed")
    fleet.ill(name, inf)
    await fleet.members.pop(name).host.die()
    fleet.start_worker(fault.version)


async def vanish(fleet: "Fleet", _: Fault) -> None:
    """Take a machine away. The server notices nothing: the worker's sessions stay open, and its heartbeats end."""
    name = max(fleet.members, key=lambda each: fleet.witness.busy[each])
    if len(fleet.members) < 2 or fleet.vanished or not fleet.witness.busy[name]:
        return
    fleet.log(f"{name} vanishes")
    fleet.disturb()
    fleet.ill(name, inf)
    fleet.vanished.add(name)
    await fleet.members.pop(name).host.die(noticed=10_000)
    fleet.note_spare()


async def deploy(fleet: "Fleet", fault: Fault) -> None:
    """Start a worker, of another version perhaps, and drain another."""
    fleet.start_worker(fault.version)
    fleet.drain(fleet.pick(fault))


async def cut_off(fleet: "Fleet", fault: Fault) -> None:
    """Take the network from a worker for a while."""
    name, seconds = fleet.pick(fault), 0.5 + 40 * fault.size
    host = fleet.members[name].host
    fleet.log(f"{name} is cut off for {seconds:.1f} s")
    host.cut_off = True
    fleet.ill(name, seconds + ILL)
    fleet.loop.call_later(seconds, setattr, host, "cut_off", False)
    fleet.loop.call_later(seconds, fleet.note_spare)
    fleet.note_spare()
    fleet.disturb(seconds)


async def half_open(fleet: "Fleet", _: Fault) -> None:
    """Let the open connections of all workers carry nothing. New ones do. No host is told."""
    fleet.log("all connections are half-open")
    for name, member in fleet.members.items():
        member.host.half_open()
        fleet.ill(name, ILL)
    fleet.disturb()
    fleet.hushed = fleet.loop.now + HUSH


async def freeze(fleet: "Fleet", fault: Fault) -> None:
    """Let a worker's process stand still for a while, as SIGSTOP does."""
    name = fleet.pick(fault)
    host, seconds = fleet.members[name].host, 400 * fault.size**3
    fleet.log(f"{name} stands still for {seconds:.1f} s")
    host.frozen = True
    fleet.ill(name, seconds + ILL)
    fleet.loop.call_later(seconds, host.thaw)
    fleet.loop.call_later(seconds, fleet.note_spare)
    fleet.note_spare()
    fleet.disturb(seconds)


async def restart(fleet: "Fleet", fault: Fault) -> None:
    """Restart the database. All connections break, and with them the workers' sessions."""
    seconds = 0.1 + 8 * fault.size
    fleet.log(f"the database is away for {seconds:.1f} s")
    fleet.all_ill(seconds + ILL)
    await _away(fleet, seconds)


async def blink(fleet: "Fleet", fault: Fault) -> None:
    """Restart the database soon after a worker stands still and lost its session: from then on it has a new grace.

    The others must not take it for dead before. All is calm until the restart.
    """
    fleet.hushed = fleet.loop.now + CALM + SHORT + BLINK
    for _ in range(3 - len(fleet.members)):
        fleet.start_worker(fault.version)
    await asyncio.sleep(CALM)
    name, restarts = fleet.pick(fault), fleet.database.restarts + 1
    host = fleet.members[name].host
    if fleet.database.down or host.frozen or not await fleet.database.see(OPEN, name):
        return
    fleet.log(f"{name} stands still while the database restarts")
    fleet.all_ill(SHORT + BLINK + ILL)
    host.frozen = True
    for wire in host.wires:
        wire.end()
    await asyncio.sleep(SHORT)
    await _away(fleet, 0.1)
    await asyncio.sleep(BLINK)
    if fleet.database.restarts == restarts and host.frozen and await fleet.database.see(DEAD, name):
        raise BrokenError("after a restart of the server the grace begins anew", name)
    host.thaw()
    fleet.disturb()


async def failover(fleet: "Fleet", fault: Fault) -> None:
    """Lose what was committed in the last seconds, as an asynchronous standby that takes over does."""
    lag = LAG * (0.05 + 0.95 * fault.size)
    known, sent = set(fleet.acknowledged), set(fleet.sent)
    stored = set(fleet.witness.stored)
    await fleet.database.snapshot()
    await asyncio.sleep(lag)
    fleet.log(f"a standby takes over and has nothing of the last {lag:.1f} s")
    fleet.all_ill(lag + 5 + ILL)
    fleet.database.down = True
    fleet.net.lose_connections()
    await fleet.database.take_over()
    there = {row[0] for row in await fleet.database.see(fleet.KEYS)}
    fleet.acknowledged -= {key for key in fleet.acknowledged if key not in known and key not in there}
    fleet.witness.took_over(stored)
    for key in sorted(fleet.sent - sent):
        fleet.signal(key)
    await _away(fleet, 5 * fault.size)


async def refuse(fleet: "Fleet", fault: Fault) -> None:
    """Let the server refuse statements for a while: writes, as a standby does, or some of all with another code."""
    seconds, random = 1 + 15 * fault.size, Random(fault.pick)
    refusal = Refusal()
    if fault.pick >= 0.5:
        share, of = random.choice((1.0, 0.5, 0.2)), random.choice(("agent.", "agent.", *PARTS))
        refusal = Refusal(random.choice(STATES), random.random() < 0.4, share, of)
    fleet.log(f"the server refuses for {seconds:.1f} s: {refusal}")
    fleet.all_ill(seconds + ILL)
    fleet.database.refusal = refusal
    await asyncio.sleep(seconds)
    if fleet.database.refusal is refusal:
        fleet.database.refusal = None
    fleet.disturb()


async def jump(fleet: "Fleet", fault: Fault) -> None:
    """Let the server's clock jump by some seconds."""
    _set_clock(fleet, fleet.database.jump + 40 * fault.size - 20)
    fleet.all_ill(ILL)


async def leap(fleet: "Fleet", fault: Fault) -> None:
    """Let the server's clock jump far ahead, and back."""
    before = fleet.database.jump
    _set_clock(fleet, before + 600 + 600 * fault.size)
    fleet.all_ill(FENCED)
    await asyncio.sleep(2 + 8 * fault.pick)
    _set_clock(fleet, before)
    fleet.all_ill(FENCED)
    fleet.disturb()


async def lock(fleet: "Fleet", fault: Fault) -> None:
    """Let a transaction of somebody else hold rows for a while."""
    nth, seconds = int(fault.pick * len(LOCKS)), 1 + 20 * fault.size
    most = 1 + int(100 * fault.size) % 5
    await _hold(fleet, LOCKS[nth].format(most=most), (), seconds)


async def stop_locked(fleet: "Fleet", fault: Fault) -> None:
    """Drain a worker while a transaction of somebody else holds the events that it runs."""
    name = fleet.pick(fault)
    await _hold(fleet, RUNNING_ON, (name,), 20 + 30 * fault.size)
    fleet.start_worker(fault.version)
    fleet.drain(name)


async def pause(fleet: "Fleet", fault: Fault) -> None:
    """Let an operator pause a kind for a while. Jobs of each group are due meanwhile, or after it.

    A kind that fails is paused as one of its retries waits alone in its group, if one does within 20 seconds. The last
    of the jobs is of that group, and due soon after the pause.
    """
    kinds = [kind for kind in ("flaky", "flaky", "plain", "few") if kind in fleet.plan.kinds]
    kind = kinds[int(len(kinds) * fault.pick)]
    alone: set[str] = set()
    for _ in range(40):
        if kind == "flaky" and not alone:
            await asyncio.sleep(0.5)
            alone = {row[0] for row in await fleet.database.see(ALONE)}
    seconds = 0.2 + 20 * fault.size**4
    due = 1.0, 1 + 2 * seconds, 1.5 + seconds
    for group, after in zip(sorted(GROUPS, key=lambda each: thread_key(each) in alone), due, strict=True):
        await fleet.schedule(f"later-{group}-{fault.at:.3f}", group, after)
    fleet.log(f"{kind} is paused")
    since, began, excused = fleet.server_now(), fleet.loop.now, fleet.witness.excused[kind]
    nth = len(excused)
    excused.append((since, inf))
    await _decide(fleet, "select agent.pause_kind($1)", kind)
    await asyncio.sleep(seconds)
    while await fleet.database.see("select from agent.kind where kind = $1 and paused", f"slack.{kind}"):
        await _decide(fleet, "select agent.resume_kind($1)", kind)
        fleet.log(f"{kind} is resumed")
        if any(each.name == "failover" for each in fleet.plan.faults):
            await asyncio.sleep(LAG)  # a standby that takes over may not know it: the operator looks again
    # The server's clock may have gone back meanwhile.
    excused[nth] = excused[nth][0], max(fleet.server_now(), since + fleet.loop.now - began)
    fleet.disturb()


async def _decide(fleet: "Fleet", query: str, kind: str) -> None:
    """Do as an operator does, who tries again where another transaction has the kind locked."""
    while True:
        try:
            await fleet.database.see(query, f"slack.{kind}")
        except asyncpg.LockNotAvailableError:
            await asyncio.sleep(1)
        else:
            return


async def _away(fleet: "Fleet", seconds: float) -> None:
    await fleet.net.restart(seconds)
    fleet.disturb()


async def _hold(fleet: "Fleet", query: str, arguments: tuple[object, ...], seconds: float) -> None:
    database = fleet.database
    connection = await database.lend("surelane")
    await database.run(connection, "execute", "begin")
    rows = await database.run(connection, "fetch", query, arguments)
    held = sorted({row["id"] for row in rows})
    fleet.log(f"{len(rows)} rows are locked for {seconds:.1f} s: {held}")
    fleet.witness.locked |= set(held)
    if (
        "agent.worker " in query
    ):  # who loses its session then cannot say that it has another, and counts as dead
        fleet.all_ill(seconds + ILL)
    database.end(connection, seconds)
    fleet.disturb(seconds)


def _set_clock(fleet: "Fleet", to: float) -> None:
    if to < fleet.database.jump:
        fleet.witness.went_back(fleet.loop.now + to)
    fleet.database.jump = to
    fleet.log(f"the server's clock is off by {to:.1f} s")
    fleet.disturb()


BY_NAME: dict[str, Callable[["Fleet", Fault], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        *(kill, vanish, deploy, cut_off, half_open, freeze, restart, failover),
        *(refuse, jump, leap, lock, stop_locked, pause, move, hold, blink),
    )
}

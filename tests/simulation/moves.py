"""An operator moves a workspace out of the queue and in again, as between two installations, while a fleet works.

The mover's own code holds what moves. Copies, deletion and publishing are one transaction here, as both ends are one
database. It promises what holds without it: nothing is lost or done twice, and each thread keeps its order.
"""

import asyncio
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, cast

import asyncpg

from surelane.errors import SurelaneError
from surelane_dev.accounts import OWNER
from surelane_dev.testing.fleets.wire import Host, Wire
from surelane_shards.moving import _Move
from tests.simulation.plan import Fault
from tests.simulation.witness import BrokenError

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

TRIES, PATIENCE = 6, 30.0
"""How often the operator begins, and for how many seconds it waits for what runs before it begins again later."""
CLAIMED = "select from agent.event where claimed_by is not null and agent.event_workspace(event) = $1"


class _Elsewhere:
    """What the mover asks of the target before it copies: whether it has these events already."""

    async def fetchval(self, *_: object) -> None: ...


async def move(fleet: "Fleet", fault: Fault) -> None:
    """Move a workspace, again where the database or what runs does not let it."""
    team, host = ("T1", "T2")[fault.pick < 0.3], Host("operator")
    for _ in range(TRIES):
        wire = Wire(fleet.net, host, OWNER, within=10, kept=False)
        try:
            async with asyncio.timeout(PATIENCE):
                await wire.open()
                fleet.log(f"{team} moves with {await _moved(fleet, wire, team)} events")
                return
        except (SurelaneError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            fleet.log(f"{team} does not move: {error!r}")
        finally:
            wire.terminate()
            fleet.disturb()
        await asyncio.sleep(10 * fault.size)


async def hold(fleet: "Fleet", fault: Fault) -> None:
    """Hold a workspace for a while as the target of a move does, and free it. Nothing of it begins meanwhile."""
    if any(each.name == "failover" for each in fleet.plan.faults):
        return  # a standby that takes over may not know the hold, or its end
    team = ("T1", "T2")[fault.pick < 0.3]
    if team in fleet.held:
        return
    fleet.held.add(team)
    for _ in range(int(PATIENCE)):
        running = await fleet.again(partial(_told, fleet, "select agent.hold_workspace($1)", team))
        if not running:
            break
        await asyncio.sleep(1)
    fleet.log(f"{team} is held, {running} events run")
    if not running:
        if await fleet.database.see(CLAIMED, team):
            raise BrokenError("a hold waits for what runs", team)
        fleet.witness.held[team].append((fleet.server_now(), inf))
    await asyncio.sleep(30 * fault.size)
    if not running:
        fleet.witness.held[team][-1] = fleet.witness.held[team][-1][0], fleet.server_now()
    while await fleet.again(partial(_told, fleet, "select agent.free_workspace($1)", team)):  # noqa: ASYNC110 - rows
        await asyncio.sleep(0.1)
    fleet.log(f"{team} is free")
    fleet.held.discard(team)
    fleet.disturb()


async def _told(fleet: "Fleet", query: str, team: str, _: object) -> int:
    return int((await fleet.database.see(query, team))[0][0])


async def _moved(fleet: "Fleet", wire: Wire, team: str) -> int:
    """Move a workspace over a connection; return how many live events went."""
    rows = await wire.fetch("select name, condition from agent.moving_tables($1)", team)
    tables = {row["name"]: row["condition"] for row in rows}
    moving = _Move(wire, cast("Any", _Elsewhere()), team, lambda _: fleet.disturb(), tables)
    commit = await moving._hold()  # noqa: SLF001 - the mover's, without its target
    copies = [
        f"create table moved.{each} as select * from agent.{each} where {tables[each]}" for each in tables
    ]
    await wire.execute("; ".join(["create schema moved", *copies]))
    events = await wire.fetchval("select count(*) from moved.event")
    await wire.fetch("select agent.delete_moved($1, 'operator', '{}', '{}')", team)
    await wire.fetch("select agent.publish_copies('moved')")
    await commit()
    return int(events)

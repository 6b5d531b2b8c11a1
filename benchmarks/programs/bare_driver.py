"""Drive the SQL alone: connections claim and complete, with nothing in between."""

import asyncio
import sys

import asyncpg
import uvloop

from benchmarks.fill import KIND
from benchmarks.programs import tally
from surelane.calls import Connection

CONNECTIONS = 2
BATCH = 200


async def _drive(connection: Connection, count: tally.Tally) -> None:
    while rows := await connection.fetch("select * from agent.claim_events($1, $2)", [KIND], BATCH):
        await _complete(connection, [row["id"] for row in rows], [row["claim"] for row in rows])
        for _ in rows:
            count.add()


async def _complete(connection: Connection, ids: list[int], claims: list[int]) -> None:
    """Complete the events. Send busy ones again, because another transaction had locked them for a moment."""
    while ids:
        answers = await connection.fetch(
            "select answer from agent.complete_events($1, $2) order by ordinal", ids, claims
        )
        busy = [place for place, row in enumerate(answers) if row["answer"] == "busy"]
        ids, claims = [ids[place] for place in busy], [claims[place] for place in busy]


async def _run(uri: str) -> None:
    count = tally.Tally()
    connections = [await asyncpg.connect(uri) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(_drive(connection, count) for connection in connections))


if __name__ == "__main__":
    uvloop.run(_run(sys.argv[1]))

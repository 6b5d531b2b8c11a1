"""What an agent says is stored once, in order, and only while the claim stands."""

import json
from typing import Any

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_service.engine import Engine, Settled


async def claimed(connection: Connection, kind: str = "k") -> tuple[int, int]:
    await Queue(connection).enqueue(kind)
    (event,) = await Engine(connection).claim_events([kind], 1, worker="w")
    return event.id, event.claim


async def said(connection: Connection, identity: int, after: int = 0) -> list[tuple[int, int, int, str]]:
    rows: list[dict[str, Any]] = json.loads(
        await connection.fetchval("select said from agent.read_said($1, $2)", identity, after)
    )
    return [(row["number"], row["part"], row["from"], row["value"]) for row in rows]


async def test_a_batch_is_stored_once_and_a_part_that_begins_anew_replaces_it(connection: Connection) -> None:
    engine, held = Engine(connection), await claimed(connection)
    for start, text in ((0, "Hel"), (3, "lo"), (3, "lo"), (5, ".")):
        assert await engine.store_said(*held, 1, start, text) == Settled.DONE
    assert await said(connection, held[0]) == [(1, 1, 0, "Hel"), (2, 1, 3, "lo"), (3, 1, 5, ".")]
    assert await said(connection, held[0], 2) == [(3, 1, 5, ".")]
    engine, held = Engine(connection), await claimed(connection)
    for part, text in ((1, "one"), (2, "two"), (3, "three"), (2, "")):
        assert await engine.store_said(*held, part, 0, text) == Settled.DONE
    assert await said(connection, held[0]) == [(1, 1, 0, "one"), (4, 2, 0, "")]
    assert await engine.store_said(*held, 3, 0, "") == Settled.DONE  # there is nothing to forget
    assert await engine.store_said(*held, 2, 0, "again") == Settled.DONE
    assert await engine.store_said(*held, 2, 0, "again") == Settled.DONE  # told once more
    assert await said(connection, held[0]) == [(1, 1, 0, "one"), (6, 2, 0, "again")]


async def test_a_slow_reader_gets_all_in_turn_and_a_lost_claim_says_nothing(connection: Connection) -> None:
    engine, held = Engine(connection), await claimed(connection)
    for place in range(150):
        await engine.store_said(*held, 1, place, "x")
    await engine.settle([(*held, "complete", None)])
    first = await said(connection, held[0])
    assert [number for number, *_ in first] == list(range(1, 101))
    assert len(await said(connection, held[0], 100)) == 50
    assert await connection.fetchval("select ended from agent.read_said($1, 0)", held[0])
    identity, claim = await claimed(connection)
    assert await engine.store_said(identity, claim + 1, 1, 0, "late") == Settled.STALE
    assert await engine.store_tags(identity, claim, {"said": "a tag"}) == Settled.DONE
    assert await engine.store_said(identity, claim, 1, 0, "text") == Settled.DONE
    assert await said(connection, identity) == [(1, 1, 0, "text")]
    assert await engine.read_steps(identity) == []
    listed = json.loads(await connection.fetchval("select agent.list_steps($1)", identity))
    assert [each["sort"] for each in listed] == ["tag"]

"""Deliveries that became no event are noted for a day, within bounds; connections of Socket Mode are told apart."""

from datetime import timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_service.intake import Dropped, Intake
from tests.sql import queue_steps as do
from tests.sql.test_erase import erase, preview

FOUND = "select coalesce(array_agg(key order by at desc), '{}') from agent.find_dropped($1, $2, $3)"
MENTION = Dropped("Ev1", "slack.app_mention", "bot", "T1", "C1", "1.5")
DIRECT = Dropped("Ev2", "slack.message.im", "subtype", "T1", "D1", "1.7")


async def note(queue: Connection, *each: Dropped, age: float = 0.0) -> None:
    await Intake(queue).note_dropped([(age, drop) for drop in each])


@pytest.mark.parametrize(
    ("asked", "keys"),
    [
        ((None, None, None), ["Ev2", "Ev1"]),
        (("Ev1", None, None), ["Ev1"]),
        ((None, "C1", "1.5"), ["Ev1"]),
        ((None, None, "1.7"), ["Ev2"]),
        ((None, "C1", "1.7"), []),
        (("bot", None, None), []),
    ],
)
async def test_a_dropped_delivery_is_found_by_its_id_and_its_message(
    queue: Connection, asked: tuple[str | None, ...], keys: list[str]
) -> None:
    await Intake(queue).note_dropped([(9.0, MENTION), (1.0, DIRECT)])
    assert await queue.fetchval(FOUND, *asked) == keys


async def test_a_dropped_delivery_is_found_by_its_time_and_forgotten_after_a_day(queue: Connection) -> None:
    within = (
        "select array_agg(key) from agent.find_dropped(_from => agent.clock() - $1::interval"
        ", _until => agent.clock() - $2::interval)"
    )
    await note(queue, MENTION, age=600)
    for since, until, keys in ((700, 500, ["Ev1"]), (500, 0, None), (900, 700, None)):
        span = timedelta(seconds=since), timedelta(seconds=until)
        assert await queue.fetchval(within, *span) == keys
    await do.advance(queue, timedelta(hours=25))
    assert await queue.fetchval(FOUND, "Ev1", None, None) == []
    await note(queue, DIRECT)
    assert await queue.fetchval("select count(*) from agent.dropped") == 1


async def test_dropped_deliveries_take_a_bounded_number_of_bytes(queue: Connection) -> None:
    newest = "update agent.dropped set upto = $1 * 1024 * 1024 where id = (select max(id) from agent.dropped)"
    await note(queue, MENTION)
    await note(queue, DIRECT)
    for mebibytes, keys in ((63, ["Ev2", "Ev2", "Ev1"]), (65, ["Ev2", "Ev2", "Ev2"])):
        await queue.execute(newest, mebibytes)
        await note(queue, DIRECT)
        assert await queue.fetchval(FOUND, None, None, None) == keys


@pytest.mark.parametrize(
    ("names", "left"), [({"team": "T1"}, []), ({"channel": "C1"}, ["Ev2"]), ({"user": "U1"}, ["Ev2", "Ev1"])]
)
async def test_an_erasure_takes_the_notes(queue: Connection, names: dict[str, Any], left: list[str]) -> None:
    await Intake(queue).note_dropped([(2.0, MENTION), (1.0, DIRECT)])
    assert (await preview(queue, **names)).get("dropped", 0) == 2 - len(left)
    assert (await erase(queue, **names)).get("dropped", 0) == 2 - len(left)
    assert await queue.fetchval(FOUND, None, None, None) == left


async def test_connections_of_the_fleet_are_ours_and_the_rest_are_others(queue: Connection) -> None:
    fleet = Intake(queue)
    for name in ("a", "b"):
        assert (await fleet.announce_sockets(name, "A1", 2)).others is None
    seen = await fleet.announce_sockets("a", "A1", 2, of_the_app=4)
    assert (seen.others, seen.unsure) == (0, False)
    assert (await fleet.announce_sockets("c", "A2", 1, of_the_app=1)).others == 0  # another app
    seen = await fleet.announce_sockets("b", "A1", 2, of_the_app=9)
    assert (seen.ours, seen.others, seen.unsure) == (4, 0, True)
    await do.advance(queue, timedelta(seconds=5))
    seen = await fleet.announce_sockets("a", "A1", 2, of_the_app=8)
    assert (seen.ours, seen.others, seen.unsure) == (4, 4, False)
    assert (await fleet.announce_sockets("b", "A1", 2, of_the_app=9)).others == 5
    assert (await fleet.announce_sockets("a", "A1", 2)).others == 5, "each process learns of it"
    (row, _) = await queue.fetch("select app_id, ours, others from agent.list_sockets() order by 1")
    assert tuple(row) == ("A1", 4, 5)
    assert (await fleet.announce_sockets("a", "A1", 2, of_the_app=4)).others == 0, "they have gone"
    assert (await fleet.announce_sockets("b", "A1", None)).ours == 2
    await do.advance(queue, timedelta(seconds=61))
    assert (await fleet.announce_sockets("a", "A1", 1)).ours == 1, "b ended, and c is silent"
    assert await queue.fetchval("select count(*) from agent.list_sockets()") == 1

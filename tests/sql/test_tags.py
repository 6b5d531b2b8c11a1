"""Operators find events by tags, live and ended, and events without tags cost what they did."""

import json
from datetime import timedelta

import pytest

from surelane.calls import Connection
from surelane.errors import InvalidInput
from surelane_encryption.data_keys import DataKeys
from surelane_encryption.keys import Keyring
from surelane_encryption.sealing import Sealing
from surelane_operator.changes import Changes
from surelane_operator.reads.filters import Filter
from surelane_service.engine import Engine, Settled
from tests.sql.queue_steps import advance, claim, complete, drop_history, enqueue, fail, pair

KEY = "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE="


async def tagged(queue: Connection, **tags: str) -> tuple[int, int]:
    """Claim a new event and tag it; return its fence."""
    await enqueue(queue)
    (row,) = await claim(queue)
    assert await Engine(queue).store_tags(*pair(row), tags) is Settled.DONE
    return pair(row)


async def ids(queue: Connection, limit: int = 20, **tags: str) -> list[int]:
    """Return the ids of the events that have all tags."""
    which = Filter(tags={name: [value] for name, value in tags.items()})
    return [job["id"] for job in await Changes(queue).list_events(which, limit)]


async def test_a_tag_is_replaced_and_removed_while_its_claim_stands(queue: Connection) -> None:
    fence = await tagged(queue, customer="acme", order="17")
    await Engine(queue).store_tags(*fence, {"customer": "other", "order": None})
    assert await ids(queue, customer="acme") == await ids(queue, order="17") == []
    nine = {f"t{number}": "x" for number in range(9)}
    assert await Engine(queue).store_tags(*fence, nine) is Settled.DONE
    with pytest.raises(InvalidInput, match="at most 10 tags"):
        await Engine(queue).store_tags(*fence, {"one": "more"})
    assert await Engine(queue).store_tags(*fence, {"t0": None, "one": "more"}) is Settled.DONE
    await complete(queue, fence)
    assert await Engine(queue).store_tags(*fence, {"customer": "third"}) is Settled.STALE
    assert await ids(queue, customer="other") == [fence[0]]


async def test_pages_narrowed_pages_counts_and_searches_take_tags(queue: Connection) -> None:
    fences = [await tagged(queue, customer="acme", order=str(number % 2)) for number in range(5)]
    await complete(queue, *fences[:3])
    operations = Changes(queue)
    which = Filter(["completed"], tags={"customer": ["acme"], "order": ["0"]})
    expected = [fences[2][0], fences[0][0]]
    found = await operations.find_events(which, 1)
    assert found.next is not None
    rest = await operations.find_events(which, 5, found.next)
    assert [job["id"] for job in (*found.events, *rest.events)] == expected
    assert await operations.count(which, 10) == 2
    searched = await operations.search("", Filter(tags={"order": ["1"]}))
    assert [job["id"] for job in searched] == [fences[3][0], fences[1][0]]
    either = Filter(tags={"order": ["0", "1"]})
    assert len(await operations.list_events(either)) == 5


async def test_a_message_is_found_by_what_its_author_typed(queue: Connection) -> None:
    sent = {"type": "event_callback", "event": {"type": "message", "text": "R&amp;D &lt;plan&gt; &amp;lt;"}}
    identity = await queue.fetchval("select agent.enqueue('note', $1::text::jsonb)", json.dumps(sent))
    found = {text: await Changes(queue).search(text, Filter()) for text in ("r&d <plan>", "&lt;", "amp")}
    assert {text: [each["id"] for each in jobs] for text, jobs in found.items()} == {
        "r&d <plan>": [identity],
        "&lt;": [identity],
        "amp": [],
    }


async def test_a_requeued_event_keeps_its_tags_and_a_replay_has_none(queue: Connection) -> None:
    fence = await tagged(queue, customer="acme")
    await complete(queue, fence)
    replay = await Changes(queue).rerun_as_new(fence[0])
    await Changes(queue).rerun([fence[0]])
    assert replay.id is not None
    assert await ids(queue, customer="acme") == [fence[0]]
    assert (await Changes(queue).get(fence[0]) or {})["steps"] == []
    (again,) = [row for row in await claim(queue) if row["id"] == fence[0]]
    await fail(queue, pair(again), final=True)
    await advance(queue, timedelta(days=400))
    await drop_history(queue)
    assert await queue.fetchval("select count(*) from agent.step") == 0


async def test_encrypted_tags_are_found_progress_is_fenced(queue: Connection, service: Connection) -> None:
    """Both are stored as no text, and progress is replaced."""
    await enqueue(queue)
    (row,) = await claim(queue)
    engine = Engine(service, Sealing(DataKeys(service, Keyring([KEY])), on=True))
    await engine.store_tags(*pair(row), {"customer": "acme"})
    for text in ("1 of 2", "2 of 2"):
        assert await engine.store_progress(*pair(row), text) is Settled.DONE
    stored = await queue.fetchval("select string_agg(s::text, '') from agent.step as s")
    assert "acme" not in stored
    assert " of 2" not in stored
    reader = Changes(queue, Sealing(DataKeys(queue, Keyring([KEY])), on=False))
    which = Filter(tags={"customer": ["acme"]})
    assert [job["id"] for job in await reader.list_events(which)] == [row["id"]]
    read = await reader.get(row["id"]) or {}
    assert (read["tags"], read["progress"]) == ({"customer": "acme"}, "2 of 2")
    assert await reader.list_events(Filter(tags={"other": ["acme"]})) == []
    assert await ids(queue, customer="acme") == []
    keyless = (await Changes(queue).get(row["id"]) or {})["tags"]
    assert keyless["customer"].startswith("cannot be decrypted")
    await complete(queue, pair(row))
    assert await engine.store_progress(*pair(row), "3 of 2") is Settled.STALE
    replay = await Changes(queue).rerun_as_new(row["id"])
    assert replay.id is not None
    assert (await Changes(queue).get(replay.id) or {})["progress"] is None

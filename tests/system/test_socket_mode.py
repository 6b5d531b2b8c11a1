"""Socket Mode: an envelope is acknowledged after its commit, and connections change without a loss."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from surelane.calls import Connection
from surelane_ingest import census, socket_mode
from surelane_operator.doctor.queue import sockets
from surelane_operator.reads.events import Reads
from surelane_service.engine import Engine
from tests.databases import as_role
from tests.metrics import documented, documented_labels, exported, labels, ours, value
from tests.processes import service, until
from tests.scenario import eventually
from tests.system.ingest_client import SECRET, Served, mention, served
from tests.system.socket_slack import TOKEN, SocketSlack, Wire

STORED = "select count(*) from agent.event where kind like 'slack.command.%'"
WAITS = "select exists (select from pg_locks where not granted)"


@pytest.fixture
async def slack() -> AsyncIterator[SocketSlack]:
    async with SocketSlack().served() as serving:
        yield serving


@asynccontextmanager
async def connected(database: str, slack: SocketSlack, **others: Any) -> AsyncIterator[Served]:
    chosen = {"app_token": TOKEN, "signing_secret": None, "slack_api_url": f"{slack.url}/api/"}
    async with served(as_role(database, "surelane_ingest"), **(chosen | others)) as ingest:
        yield ingest


@pytest.fixture
async def ingest(database: str, slack: SocketSlack) -> AsyncIterator[Served]:
    async with connected(database, slack, socket_connections=1) as running:
        yield running


@pytest.fixture
async def wire(ingest: Served, slack: SocketSlack) -> Wire:
    assert ingest.ingest.port
    return await slack.wire()


async def keys(connection: Connection) -> list[str]:
    return [row["item_key"] for row in await connection.fetch("select item_key from agent.event order by id")]


async def readiness(ingest: Served) -> tuple[int, str]:
    async with ingest.slack.session.get(f"{ingest.private_url}/readyz") as response:
        return response.status, (await response.json()).get("reason", "")


async def ready(ingest: Served) -> None:
    await eventually(lambda: readiness(ingest), (200, ""), within=60, every=0.02)


async def test_an_envelope_is_acknowledged_once_it_is_stored_and_stored_once_by_both_ways(
    database: str, slack: SocketSlack, connection: Connection
) -> None:
    payload = mention(text="ünï \u2028 code")
    async with connected(database, slack, signing_secret=SECRET) as ingest:
        wire = await slack.wire()
        for attempt in range(2):
            assert await wire.take(payload, retry_attempt=attempt, retry_reason="timeout") == {}
        assert (await ingest.slack.event(payload)).status == 200
    (row,) = await connection.fetch("select item_key, kind, event from agent.event")
    assert (row["item_key"], row["kind"]) == (payload["event_id"], "slack.app_mention")
    assert json.loads(row["event"]) == payload


async def test_an_answer_is_in_the_acknowledgement_unless_slack_takes_none(
    wire: Wire, connection: Connection
) -> None:
    assert await Engine(connection).introduce_worker("w", "1.0.0", ["slack.command.deploy"], [])
    fields = {"command": "/deploy", "text": "web", "team_id": "T1", "channel_id": "C1", "user_id": "U1"}
    for number, (answer, payload) in enumerate(
        [('"done"', {"text": "done"}), ('{"text": "*done*"}', {"text": "*done*"})]
    ):
        command = {**fields, "trigger_id": f"1.{number}"}
        sent = await wire.send(command, "slash_commands", accepts_response_payload=True)
        await eventually(lambda: connection.fetchval(STORED), expected=number + 1, within=60, every=0.02)
        (event,) = await Engine(connection).claim_events(["slack.command.deploy"], 1, worker="w")
        assert await Engine(connection).answer_requests([(event.id, event.claim, answer)]) == {event.id}
        assert await wire.acknowledgement() == {"envelope_id": sent, "payload": payload}
    click = {"type": "block_actions", "trigger_id": "2.1", "team": {"id": "T1"}, "actions": [{}]}
    assert await wire.take(click, "interactive", accepts_response_payload=False) == {}
    assert "slack.block_actions" in [
        row["kind"] for row in await connection.fetch("select kind from agent.event")
    ]


async def test_what_can_never_be_stored_is_acknowledged_and_garbled_frames_change_nothing(
    wire: Wire, connection: Connection
) -> None:
    of_events = [("events_api", payload) for payload in ({"type": "event_callback"}, None, [1])]
    others = [
        ("slash_commands", {"command": 3}),
        ("interactive", {"type": {}}),
        ("of_tomorrow", {}),
        (None, {}),
    ]
    for kind, payload in (*of_events, *others):
        assert await wire.take(payload, kind) == {}
    for frame in ("", "{", "[]", "null", '{"envelope_id": 7}', '{"envelope_id": ""}', '{"type": {}}'):
        await wire.socket.send_str(frame)
    await wire.socket.send_bytes(b"\x00\xff")
    good = mention()
    assert await wire.take(good) == {}
    assert await keys(connection) == [good["event_id"]]


@pytest.mark.parametrize("reason", ["warning", "refresh_requested"])
async def test_the_next_connection_opens_before_the_old_one_ends(
    wire: Wire, slack: SocketSlack, connection: Connection, reason: str
) -> None:
    await wire.disconnect(reason)
    next_wire = await slack.wire()
    assert not wire.ended.is_set()
    for each in (wire, next_wire):
        assert await each.take(mention()) == {}
    await wire.socket.close()
    assert len(await keys(connection)) == 2
    assert len(slack.open) == 1


@pytest.mark.parametrize("why", ["huge", "broken", "silent"])
async def test_a_connection_that_ends_or_is_silent_is_replaced(
    database: str, slack: SocketSlack, monkeypatch: pytest.MonkeyPatch, connection: Connection, why: str
) -> None:
    if why == "silent":
        monkeypatch.setattr(socket_mode, "HEARTBEAT", 0.5)
        slack.answers_pings = False
    async with connected(database, slack, socket_connections=1):
        wire = await slack.wire()
        if why == "huge":
            await wire.send(mention(text="x" * 2_000_000))
        elif why == "broken":
            await wire.socket.close()
        slack.answers_pings = True
        assert await (await slack.wire()).take(mention()) == {}
    assert len(await keys(connection)) == 1


async def test_the_end_waits_for_what_was_taken_and_takes_no_more(
    database: str, slack: SocketSlack, connection: Connection
) -> None:
    payload, stop = mention(), asyncio.Event()
    started: asyncio.Future[Served] = asyncio.get_running_loop().create_future()

    async def serve() -> None:
        async with connected(database, slack, socket_connections=1, database_budget="60s") as ingest:
            started.set_result(ingest)
            await stop.wait()

    serving = asyncio.create_task(serve())
    wire, drain = await slack.wire(), (await started).ingest.drain
    async with connection.transaction():
        await connection.execute("lock table agent.event")
        sent = await wire.send(payload)
        await eventually(lambda: connection.fetchval(WAITS), expected=True, within=60, every=0.02)
        stop.set()
        await until(drain.is_set)
        await wire.send(mention())
    assert await wire.acknowledgement() == {"envelope_id": sent}
    await serving
    await asyncio.wait_for(wire.ended.wait(), 60)
    assert wire.acknowledged.empty()
    assert await keys(connection) == [payload["event_id"]]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, {"ok": False, "error": "invalid_auth"}, {}), "Slack does not know SLACK_APP_TOKEN"),
        ((200, {"ok": False, "error": "missing_scope"}, {}), "connections:write"),
        ((429, {"ok": False, "error": "ratelimited"}, {"Retry-After": "1000"}), "limits the rate"),
        ((200, {"ok": False, "error": "<script>"}, {}), "Slack refuses: unknown"),
        ((500, {"ok": False}, {}), "Slack refuses: unknown"),
        ((200, {"ok": True, "url": "http://elsewhere/"}, {}), "names no address"),
    ],
)
async def test_without_a_connection_the_service_is_not_ready_and_says_why(
    database: str, slack: SocketSlack, answer: tuple[int, dict[str, Any], dict[str, str]], reason: str
) -> None:
    slack.answers = [answer] * 1000
    async with connected(database, slack) as ingest:

        async def named() -> bool:
            status, told = await readiness(ingest)
            return status == 503 and reason in told

        await eventually(named, expected=True, within=60, every=0.02)


async def test_replicas_share_the_ten_connections_that_slack_allows(
    database: str, slack: SocketSlack
) -> None:
    slack.others = 9
    async with connected(database, slack, socket_connections=4) as ingest:
        for _ in range(4):
            await slack.wire()
        await until(lambda: len(slack.open) == 1)
        await ready(ingest)


async def test_connections_of_another_client_are_told_until_they_are_gone(
    database: str, slack: SocketSlack, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas of ours are no other client. A first sight alone is not told: one of ours may just have ended."""
    for name in ("SURE", "AGAIN", "CALM", "EVERY"):
        monkeypatch.setattr(census, name, timedelta(milliseconds=50))

    async def told() -> str:
        return "; ".join([each.found for each in await sockets(Reads(connection))])

    async def foreign() -> bool:
        return "3 of the 7 connections of app A1 are not ours" in await told()

    with capture_logs() as logs:
        async with connected(database, slack), connected(database, slack):
            await until(lambda: len(slack.open) == 4)
            await eventually(told, "app A1 has 4 connections, all of them ours", within=60, every=0.02)
            slack.others = 3
            unsure = "select bool_or(unsure) from agent.list_sockets()"
            await eventually(lambda: connection.fetchval(unsure), expected=True, within=60, every=0.02)
            assert "not ours" not in await told()
            await connection.execute("update agent.socket set since = since - interval '10 seconds'")
            await eventually(foreign, expected=True, within=60, every=0.02)
            await until(
                lambda: ("warning", census.WARNING) in [(log["log_level"], log["event"]) for log in logs]
            )
            slack.others = 0
            await until(lambda: sum("any more" in log["event"] for log in logs) >= 2)
    assert await told() == ""


async def test_the_first_connection_tries_until_slack_answers_and_has_room(
    database: str, slack: SocketSlack
) -> None:
    slack.answers = [(500, {"ok": False}, {})] * 2
    slack.first = {"type": "disconnect", "reason": "too_many_websockets"}
    async with connected(database, slack, socket_connections=1) as ingest:
        await slack.wire()
        await slack.wire()
        assert "all its connections" in (await readiness(ingest))[1]
        slack.first = None
        await ready(ingest)


async def test_connections_and_envelopes_are_counted_as_documented(database: str, slack: SocketSlack) -> None:
    env = {"SLACK_APP_TOKEN": TOKEN, "SLACK_API_URL": f"{slack.url}/api/", "SURELANE_SOCKET_CONNECTIONS": "1"}
    async with service("surelane_ingest", {"DATABASE_URL": database, **env}) as ingest:
        assert await (await slack.wire()).take(mention()) == {}
        shown = await exported(ingest.private_url)
    told, every = documented("Socket Mode"), documented_labels()
    assert {name: kind for name, kind in ours(shown).items() if "_socket_" in name} == told
    assert all(labels(shown[name]) == every.get(name, set()) for name in told)
    assert value(shown, "surelane_ingest_socket_connections") == 1


async def test_without_a_signing_secret_slacks_urls_are_off(ingest: Served) -> None:
    for path in ("/slack/events", "/slack/commands", "/slack/interactions"):
        answer = await ingest.slack.post(path, b"{}")
        assert answer.status == 404
        assert b"SLACK_SIGNING_SECRET is not set" in answer.body

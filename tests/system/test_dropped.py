"""What ingest takes no event of can be asked for: that it came, and why it was not taken."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_ingest import dropped
from surelane_ingest.dropped import Notes
from surelane_service.pool import create_pool
from tests.databases import as_role
from tests.scenario import eventually
from tests.system.ingest_client import APP, Served, envelope, mention, served
from tests.system.socket_slack import TOKEN, SocketSlack
from tests.system.test_cli import Command
from tests.system.test_triggers import SECRETS, post

ROWS = "select count(*) from agent.dropped"
COUNT = "select count(*) from agent.find_dropped(_limit => 200)"
SAID = {"type": "message", "channel": "C0GENERAL", "ts": "1795797600.000100", "user": "U1", "text": "secret"}
SAID["channel_type"] = "channel"
MENTION = {**SAID, "type": "app_mention"}


@pytest.fixture
def surelane(database: str) -> Command:
    return Command(as_role(database, "surelane_operator"))


@asynccontextmanager
async def ingest(database: str, **others: Any) -> AsyncIterator[Served]:
    """Serve; by the end all notes are stored."""
    async with served(as_role(database, "surelane_ingest"), trigger_secrets=SECRETS, **others) as running:
        yield running


DROPPED: tuple[tuple[dict[str, Any], str], ...] = (
    ({**MENTION, "user": None, "bot_id": "B1", "subtype": "bot_message"}, "SURELANE_BOT_MESSAGES is off"),
    ({**MENTION, "app_id": APP}, "SURELANE_OWN_EVENTS is off"),
    ({**MENTION, "subtype": "channel_join"}, "of the subtype channel_join are not taken"),
    (SAID, "Neither the manifest nor SURELANE_EVENT_TYPES of ingest names message.channels"),
    ({**SAID, "channel_type": "of_tomorrow"}, "SURELANE_EVENT_TYPES of ingest names message."),
    ({**SAID, "subtype": "message_changed", "ts": "1.9", "message": SAID}, "names message_changed"),
    ({"type": "reaction_added", "user": "U1", "item": SAID}, "names reaction_added"),
)


async def test_why_tells_of_a_dropped_delivery_by_its_id_its_message_and_its_time(
    database: str, surelane: Command
) -> None:
    async with ingest(database) as running:
        for number, (event, _) in enumerate(DROPPED):
            assert (await running.slack.event(envelope(event, f"Ev{number}"))).status == 200
    ts = SAID["ts"]
    link = f"https://acme.slack.com/archives/C0GENERAL/p{ts.replace('.', '')}"
    for asked in (link, f"C0GENERAL {ts}", ts, datetime.now(UTC).isoformat(timespec="minutes")):
        told = await surelane("events", "why", asked)
        assert [why for _, why in DROPPED if why not in told.out] == [], (asked, told)
    for number, (_, why) in enumerate(DROPPED):
        told = await surelane("events", "why", f"Ev{number}", "--json")
        assert (told.json["reason"], why in told.json["detail"]) == ("dropped", True)
        assert "secret" not in told.out
    for asked in ("Ev9", f"{link[:-1]}9", "2026-01-01T10:00"):
        assert (await surelane("events", "why", asked)).refused(3, "no such delivery was dropped")


async def test_refused_webhooks_unhandled_commands_second_ids_and_malformed_bodies_are_noted(
    database: str, surelane: Command
) -> None:
    first = mention()
    again = envelope({**first["event"], "type": "message", "channel_type": "channel"})
    async with ingest(database, event_types="app_mention,message.channels") as running:
        for payload in (first, again, again):
            assert (await running.slack.event(payload)).status == 200
        assert (await running.slack.event({"type": "event_callback"})).status == 400
        assert (await running.slack.event({"type": "app_rate_limited", "team_id": "T1"})).status == 200
        assert (await post(running, body=b"{", identity="msg_9")).status == 400
    assert (await surelane("events", "why", first["event_id"], "--json")).json["reason"] == "no_worker"
    told = await surelane("events", "why", again["event_id"])
    assert "was stored before, from another delivery" in told.out
    told = await surelane("events", "why", "webhook:git:msg_9")
    assert "It was refused: 400" in told.out
    now = await surelane("events", "why", datetime.now(UTC).isoformat(timespec="minutes"))
    assert "It was refused: malformed: no event" in now.out
    assert "Slack itself dropped events" in now.out


async def test_a_delivery_over_a_socket_is_noted_while_the_service_runs(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropped, "EVERY", 0.01)
    async with SocketSlack().served() as slack:
        chosen = {"app_token": TOKEN, "signing_secret": None, "slack_api_url": f"{slack.url}/api/"}
        async with ingest(database, **chosen):
            wire = await slack.wire()
            assert await wire.take(mention(bot_id="B1")) == {}
            await eventually(lambda: connection.fetchval(COUNT), 1, within=60, every=0.02)


async def test_a_flood_is_a_few_bounded_batches_and_a_locked_table_holds_up_nothing(
    database: str, connection: Connection
) -> None:
    async with ingest(database) as running:
        assert (await running.slack.event(mention(bot_id="B1"))).status == 200
    assert await connection.fetchval(ROWS) == 1
    pool = await create_pool(as_role(database, "surelane_ingest"), service="t", max_size=1)
    async with pool:
        async with Notes(pool, timedelta(seconds=2)) as notes:
            for number in range(dropped.MOST + 10):
                notes.of(envelope(SAID, f"Ev{number}"), "type")
        assert await connection.fetchval(ROWS) == 2
        async with connection.transaction():
            await connection.execute("lock table agent.dropped")
            async with asyncio.timeout(30), ingest(database) as running:
                assert (await running.slack.event(mention(bot_id="B1"))).status == 200
                assert (await running.slack.event(mention())).status == 200
        assert await connection.fetchval(ROWS) == 2

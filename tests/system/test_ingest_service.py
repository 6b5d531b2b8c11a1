"""The ingest service starts as a process, serves two ports and exits cleanly."""

import json

import aiohttp

from surelane.calls import Connection
from tests.databases import as_role
from tests.processes import service
from tests.system.ingest_client import Slack, envelope, mention, settings


async def test_an_acknowledged_event_is_stored_whole(database: str, connection: Connection) -> None:
    sent = mention(novel_field={"kept": True})
    async with (
        service("surelane_ingest", settings(as_role(database, "surelane_ingest")), imported=False) as ingest,
        aiohttp.ClientSession() as session,
    ):
        answer = await Slack(session, ingest.url).event(sent)
    assert answer.status == 200, answer
    row = await connection.fetchrow("select event, kind, item_key from agent.event")
    assert row is not None
    assert json.loads(row["event"]) == sent
    assert (row["kind"], row["item_key"]) == ("slack.app_mention", sent["event_id"])


async def test_an_event_type_that_is_dropped_is_said_once(database: str) -> None:
    role = as_role(database, "surelane_ingest")
    async with service("surelane_ingest", settings(role)) as ingest, aiohttp.ClientSession() as session:
        slack = Slack(session, ingest.url)
        for name in ("reaction_added", "reaction_added", "app_uninstalled", "team_join"):
            assert (await slack.event(envelope({"type": name}))).status == 200
    warned = [json.loads(line) for line in ingest.output if "SURELANE_EVENT_TYPES" in line]
    assert [(line["level"], line["type"]) for line in warned] == [
        ("warning", "reaction_added"),
        ("warning", "team_join"),
    ]

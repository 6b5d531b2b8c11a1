"""The ingest service starts as a process, serves two ports and exits cleanly."""

import json

import aiohttp

from surelane.calls import Connection
from tests.databases import as_role
from tests.processes import service
from tests.system.ingest_client import Slack, envelope, mention, settings


async def test_an_acknowledged_event_is_stored_whole_and_a_dropped_type_is_said_once(
    database: str, connection: Connection
) -> None:
    sent, env = mention(novel_field={"kept": True}), settings(as_role(database, "surelane_ingest"))
    async with service("surelane_ingest", env, imported=False) as ingest, aiohttp.ClientSession() as session:
        slack = Slack(session, ingest.url)
        assert (await slack.event(sent)).status == 200
        for name in ("reaction_added", "reaction_added", "app_uninstalled", "team_join"):
            assert (await slack.event(envelope({"type": name}))).status == 200
    (row,) = await connection.fetch("select event, kind, item_key from agent.event")
    assert json.loads(row["event"]) == sent
    assert (row["kind"], row["item_key"]) == ("slack.app_mention", sent["event_id"])
    warned = [json.loads(line) for line in ingest.output if "bot_events of the manifest" in line]
    told = [(line["level"], line["type"]) for line in warned]
    assert told == [("warning", "reaction_added"), ("warning", "team_join")]

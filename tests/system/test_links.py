"""Links in messages and clicks on Work Objects: from a person in the simulated Slack to what the app shows."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from surelane.calls import Connection
from surelane_dev.simulator.server import serving_simulator
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_service.service_settings import DEMO_SIGNING_SECRET, load_settings
from tests.processes import until
from tests.system import link_handlers
from tests.system.ingest_client import served
from tests.system.worker import worker

TYPES = frozenset({"link_shared", "entity_details_requested"})
HANDLERS = {"SURELANE_HANDLERS": f"{link_handlers.__name__}:handlers"}
MANIFEST = {
    "features": {"unfurl_domains": ["tickets.example.com", "example.org"]},
    "oauth_config": {"scopes": {"bot": ["links:write", "chat:write"]}},
    "settings": {"event_subscriptions": {"bot_events": sorted(TYPES)}},
}


@pytest.fixture
async def slack(database: str, tmp_path: Path) -> AsyncIterator[tuple[Simulator, str]]:
    """Run a whole system whose app shows links."""
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(MANIFEST))
    nowhere = "http://127.0.0.1:9/api/"
    signed: dict[str, Any] = {"signing_secret": DEMO_SIGNING_SECRET, "slack_api_url": nowhere}
    async with served(database, event_types=TYPES, **signed) as ingest:
        chosen = load_settings(
            SimulatorSettings, port=0, ingest_url=ingest.url, manifest=manifest, retry_delays=()
        )
        async with (
            serving_simulator(chosen) as (url, simulator),
            worker(database, SLACK_API_URL=f"{url}/api/", SLACK_BOT_TOKEN="xoxb-any", **HANDLERS),
        ):
            yield simulator, url


async def request(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/control/{path}", json=body) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def test_links_are_shown_and_a_click_shows_the_details(
    slack: tuple[Simulator, str], connection: Connection
) -> None:
    simulator, url = slack
    ticket, other = "https://tickets.example.com/t/7", "https://www.example.org/x?a=1&b=2"
    said = (await request(url, "messages", {"text": f"see {ticket}"}))["message"]
    channel = simulator.workspace.channels[said["channel"]]
    message = channel.messages[said["ts"]]
    await until(lambda: message.attachments, what="the shown link")
    (shown,) = message.attachments
    assert (shown["from_url"], shown["fallback"]) == (ticket, "Ticket 7")
    await request(url, "entities", {"channel": channel.id, "ts": message.ts, "url": ticket, "user": "ada"})
    details = simulator.interactions.details
    await until(lambda: details, what="the details")
    assert details[message.user]["metadata"]["external_ref"] == {"id": "7", "type": "ticket"}

    said = (await request(url, "messages", {"text": f"and {other}"}))["message"]
    message = channel.messages[said["ts"]]
    await until(
        lambda: message.attachments and channel.replies(message.ts), what="the other link and a reply"
    )
    assert message.attachments == [{"text": "a page of example.org", "from_url": other}]
    assert [reply.text for reply in channel.replies(message.ts)] == ["Shown."]
    groups = await connection.fetch("select distinct group_key from agent.event_hist")
    assert [group["group_key"] for group in groups] in ([None], [])  # they wait for no event of their channel

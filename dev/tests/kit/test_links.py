"""Links in messages and clicks on Work Objects: from a person in the simulated Slack to what the app shows."""

import json
from pathlib import Path
from typing import Any

import pytest

from surelane_dev.testing.bot import running_bot
from surelane_dev.testing.database import PostgresServer, connected
from surelane_worker import Context, Event, Handlers

MANIFEST = {
    "features": {"unfurl_domains": ["tickets.example.com", "example.org"]},
    "oauth_config": {"scopes": {"bot": ["links:write", "chat:write"]}},
    "settings": {"event_subscriptions": {"bot_events": ["link_shared", "entity_details_requested"]}},
}


@pytest.fixture
def handlers() -> Handlers:
    """Return handlers that show links, and the details of what they show."""
    made = Handlers()

    def entity(url: str) -> dict[str, Any]:
        number = url.rpartition("/")[2]
        title = {"attributes": {"title": {"text": f"Ticket {number}"}}}
        about = {"external_ref": {"id": number, "type": "ticket"}, "url": url, "app_unfurl_url": url}
        return {"entity_type": "slack#/entities/task", **about, "entity_payload": title}

    @made.link("tickets.example.com")
    async def show(event: Event, ctx: Context) -> None:
        slack = event.slack
        shown = [entity(each["url"]) for each in slack["links"] if each["domain"] == "tickets.example.com"]
        where = {"unfurl_id": slack["unfurl_id"], "source": slack["source"]}
        await ctx.slack.client.chat_unfurl(**where, metadata={"entities": shown})

    @made.link()
    async def quote(event: Event, ctx: Context) -> None:
        slack = event.slack
        unfurls = {link["url"]: {"text": f"a page of {link['domain']}"} for link in slack["links"]}
        await ctx.slack.client.chat_unfurl(channel=slack["channel"], ts=slack["message_ts"], unfurls=unfurls)
        await ctx.slack.reply(event, "Shown.")

    @made.entity("ticket")
    async def details(event: Event, ctx: Context) -> None:
        metadata = entity(event.slack["app_unfurl_url"])
        await ctx.slack.client.entity_presentDetails(event.slack["trigger_id"], metadata=metadata)

    return made


async def test_links_are_shown_and_a_click_shows_the_details(
    surelane_server: PostgresServer, handlers: Handlers, tmp_path: Path
) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(MANIFEST))
    ticket, other = "https://tickets.example.com/t/7", "https://www.example.org/x?a=1&b=2"
    async with running_bot(surelane_server, handlers, manifest) as bot:
        sent = await bot.slack.message(f"see {ticket}")
        (shown,) = sent.channel.messages[sent.ts].attachments
        assert (shown["from_url"], shown["fallback"]) == (ticket, "Ticket 7")
        click = {"channel": sent.channel.id, "ts": sent.ts, "url": ticket, "user": "ada"}
        await bot.slack._client.request("POST", "/control/entities", click)  # noqa: SLF001 - it has no method
        await bot.idle()
        (details,) = bot.slack.simulator.interactions.details.values()
        assert details["metadata"]["external_ref"] == {"id": "7", "type": "ticket"}
        sent = await bot.slack.message(f"and {other}")
        assert sent.channel.messages[sent.ts].attachments == [
            {"text": "a page of example.org", "from_url": other}
        ]
        assert [reply.text for reply in sent.replies] == ["Shown."]
        async with connected(bot.database_url) as owner:
            groups = await owner.fetchval("select count(group_key) from agent.event_hist")
        assert groups == 0, "they wait for no event of their channel"

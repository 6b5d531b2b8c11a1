"""Handlers that show links, and the details of what they show."""

from typing import Any

from surelane_worker import Context, Event, Handlers

handlers = Handlers()


def entity(url: str) -> dict[str, Any]:
    """Return a task as Slack's metadata describes it."""
    number = url.rpartition("/")[2]
    return {
        "entity_type": "slack#/entities/task",
        "external_ref": {"id": number, "type": "ticket"},
        "url": url,
        "app_unfurl_url": url,
        "entity_payload": {"attributes": {"title": {"text": f"Ticket {number}"}}},
    }


@handlers.link("tickets.example.com")
async def show(event: Event, ctx: Context) -> None:
    """Show tickets below the message."""
    slack = event.slack
    entities = [entity(link["url"]) for link in slack["links"] if link["domain"] == "tickets.example.com"]
    await ctx.slack.client.chat_unfurl(
        unfurl_id=slack["unfurl_id"], source=slack["source"], metadata={"entities": entities}
    )


@handlers.link()
async def quote(event: Event, ctx: Context) -> None:
    """Show other links as text, by the message that has them."""
    slack = event.slack
    unfurls = {link["url"]: {"text": f"a page of {link['domain']}"} for link in slack["links"]}
    await ctx.slack.client.chat_unfurl(channel=slack["channel"], ts=slack["message_ts"], unfurls=unfurls)
    await ctx.slack.reply(event, "Shown.")


@handlers.entity("ticket")
async def details(event: Event, ctx: Context) -> None:
    """Show a ticket's details."""
    metadata = entity(event.slack["app_unfurl_url"])
    await ctx.slack.client.entity_presentDetails(event.slack["trigger_id"], metadata=metadata)

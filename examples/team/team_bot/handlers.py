"""Define the handlers of a team's bot. Start it with ``SURELANE_HANDLERS=team_bot:handlers``."""

from datetime import UTC, datetime, timedelta

from surelane.text import escaped
from surelane_worker import Call, Context, Discard, Event, Given, Handlers

handlers = Handlers()
REMINDER = timedelta(hours=1)

FEEDBACK = {
    "type": "context_actions",
    "elements": [
        {
            "type": "feedback_buttons",
            "action_id": "feedback",
            "positive_button": {"text": {"type": "plain_text", "text": "Good"}, "value": "good"},
            "negative_button": {"text": {"type": "plain_text", "text": "Bad"}, "value": "bad"},
        }
    ],
}
MODAL = {
    "type": "modal",
    "callback_id": "ask",
    "title": {"type": "plain_text", "text": "Ask"},
    "submit": {"type": "plain_text", "text": "Ask"},
    "blocks": [
        {
            "type": "input",
            "block_id": "question",
            "label": {"type": "plain_text", "text": "Your question"},
            "element": {"type": "plain_text_input", "action_id": "text"},
        }
    ],
}
HOME = {
    "type": "home",
    "blocks": [
        {"type": "section", "text": {"type": "mrkdwn", "text": "Mention me, or use the shortcut *Ask*."}}
    ],
}


@handlers.middleware
async def timed(given: Given, ctx: Context, call_next: Call) -> object:
    """Log the duration of each handler. The line carries the event's id, kind and attempt."""
    began = datetime.now(UTC)
    try:
        return await call_next(given, ctx)
    finally:
        ctx.log.info("handled", seconds=(datetime.now(UTC) - began).total_seconds())


@handlers.event("app_mention", timeout="2m", concurrency=4)
async def answer(event: Event, ctx: Context) -> dict[str, int] | Discard:
    """Stream an answer into the thread word by word, as a language model would, and schedule a reminder."""
    question = str(event.slack.get("text", ""))
    if "nothing" in question:
        return Discard("asked for nothing")
    await ctx.slack.set_status(event, "is thinking…")
    words = [word for word in question.split() if not word.startswith("<@")]
    async with ctx.slack.stream(event) as stream:
        for word in words:
            await stream.append(f"{word} ")
        await stream.append("— that is what I understood.")
        await stream.stop(blocks=[FEEDBACK])
    await ctx.queue.enqueue(
        "reminder",
        {"channel": event.slack["channel"], "thread_ts": event.slack.get("thread_ts") or event.slack["ts"]},
        run_at=datetime.now(UTC) + REMINDER,
        item_key=f"reminder:{event.key}",  # a second attempt finds the first attempt's reminder
    )
    return {"words": len(words)}


@handlers.on("reminder")
async def remind(event: Event, ctx: Context) -> None:
    """Ask, an hour later, whether the answer helped."""
    where = event.payload
    await ctx.slack.reply(event, "Did that help?", channel=where["channel"], thread_ts=where["thread_ts"])


@handlers.on_group("slack.message.im")
async def converse(events: list[Event], ctx: Context) -> None:
    """Answer several messages in a row with one reply."""
    lines = [str(event.slack.get("text", "")) for event in events]
    await ctx.slack.reply(events[-1], f"{len(lines)} message(s), all read: " + " / ".join(lines))


@handlers.action("feedback")
async def thank(event: Event, ctx: Context) -> dict[str, str]:
    """Thank for feedback; history keeps it as the result."""
    await ctx.slack.reply(event, "Thank you.", response_type="ephemeral", replace_original=False)
    return {"feedback": str(event.payload["actions"][0].get("value"))}


@handlers.shortcut("ask")
async def ask(event: Event, ctx: Context) -> None:
    """Open the modal. Slack allows three seconds for it."""
    await ctx.slack.open_view(event, MODAL)


@handlers.view("ask")
async def asked(event: Event, ctx: Context) -> None:
    """Answer a submitted question in a direct message."""
    question = event.payload["view"]["state"]["values"]["question"]["text"]["value"]
    user = event.payload["user"]["id"]
    opened = await ctx.slack.client.conversations_open(users=user)
    await ctx.slack.reply(event, f"You asked: {escaped(question)}", channel=opened["channel"]["id"])


@handlers.event("app_home_opened")
async def home(event: Event, ctx: Context) -> None:
    """Show the *Home* tab."""
    await ctx.slack.publish_home(event.slack["user"], HOME)


@handlers.command("/status")
def status(event: Event, ctx: Context) -> None:
    """Answer with the status. A plain function runs in a thread and may block; ``ctx.run`` runs a coroutine."""
    ctx.run(ctx.slack.reply(event, f"All is well, <@{event.payload['user_id']}>."))

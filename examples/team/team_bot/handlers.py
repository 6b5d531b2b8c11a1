"""Define the handlers of a team's bot. Start it with ``SURELANE_HANDLERS=team_bot:handlers``."""

from datetime import UTC, datetime, timedelta

from surelane_worker import Call, Context, Discard, Event, Given, Handlers

handlers = Handlers()
REMINDER = timedelta(hours=1)


@handlers.middleware
async def timed(given: Given, ctx: Context, call_next: Call) -> object:
    """Log the duration of each handler. The line carries the event's id, kind and attempt."""
    began = datetime.now(UTC)
    try:
        return await call_next(given, ctx)
    finally:
        ctx.log.info("handled", seconds=(datetime.now(UTC) - began).total_seconds())


@handlers.on("slack.app_mention", timeout="2m", concurrency=4)
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


@handlers.on("slack.command.status")
def status(event: Event, ctx: Context) -> None:
    """Answer with the status. A plain function runs in a thread and may block; ``ctx.run`` runs a coroutine."""
    ctx.run(ctx.slack.reply(event, f"All is well, <@{event.payload['user_id']}>."))

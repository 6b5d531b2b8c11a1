"""End the streamed replies that events left unfinished when they ended: failed, cancelled or expired.

The database stores a job for each of them (``agent.end_streams``). Every worker with a bot token handles these jobs.
"""

from surelane.events import Event
from surelane_worker.handling.context import Context
from surelane_worker.handling.registry import Handlers
from surelane_worker.slack.sent import SentReplies, Thread
from surelane_worker.slack.stream import ENDED, allowing

handlers = Handlers()


@handlers.on("surelane.stream", timeout="1m")
async def end(event: Event, ctx: Context) -> dict[str, str | None]:
    """End a message with the text that it has. The payload is the note of its beginning, perhaps without its ``ts``."""
    channel, ts = event.payload["channel"], event.payload["ts"]
    if ts is None:
        # A later event's stream in the thread began after this job was stored.
        stored_at = f"{event.event_ts.timestamp():.6f}"
        thread = Thread(channel, event.payload["thread_ts"], event.payload["since"], stored_at)
        ts = next(iter(await SentReplies(ctx.slack.client, ctx.log).running(thread)), None)
    if ts is not None:
        await allowing(ENDED, ctx.slack.client.chat_stopStream(channel=channel, ts=ts))
    return {"ended": ts}

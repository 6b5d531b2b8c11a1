"""End the streamed replies that events left unfinished when they ended: failed, cancelled or expired.

The database stores a job for each of them (``agent.end_streams``). Every worker with a bot token handles these jobs.
"""

from surelane.events import Event
from surelane_worker.handling.context import Context
from surelane_worker.handling.registry import Handlers

handlers = Handlers()


@handlers.on("surelane.stream", timeout="1m")
async def end(event: Event, ctx: Context) -> dict[str, str | None]:
    """End a message with the text that it has. One without a timestamp began before this job was stored."""
    stored_at = f"{event.event_ts.timestamp():.6f}"
    return {"ended": await ctx.slack.end_stream(event.payload, stored_at)}

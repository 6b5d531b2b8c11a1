"""Stop the turns of a thread where a person presses Slack's own Stop.

Slack shows it while the thread's agent session is ``processing``, and has ended the app's streams when it tells of it.
"""

from typing import Any

from surelane.slack import place_of
from surelane_agents.calls import agent_calls
from surelane_agents.context.thread import TURN
from surelane_agents.reply.session import set_status
from surelane_worker import Context, Event, Handlers, Snooze
from surelane_worker.handling.asks import ignoring_final_errors
from surelane_worker.handling.routes import STOPPED

handlers = Handlers()
SOON = Snooze("2s")
"""A turn is locked. This may last, so it costs no attempts."""
REASON = "stopped in Slack"
"""``agent.said_since_turn`` and ``agent.event_hist_close`` know it, too."""


@handlers.on(STOPPED, timeout="1m")
async def stop(event: Event, ctx: Context) -> dict[str, Any] | Snooze:
    """Cancel the turns, as an operator does, and say so in the thread. The end of a turn closes its session."""
    user = place_of(event.payload).user or "unknown"
    at = event.enqueued_at or event.event_ts  # what began later is not meant, also in a later attempt
    answer = await agent_calls(ctx).stop_turns(event.payload, at, TURN, by=user, reason=REASON)
    if answer == "busy":
        return SOON
    if answer is None and event.claim == 1:  # it had ended; an earlier claim may have stopped it, and died
        await set_status(event, ctx, "closed")
    else:
        with ignoring_final_errors():
            await ctx.slack.reply(event, f"Stopped by <@{user}>.")
    return {"stopped": answer}

"""Show a turn as an agent session of Slack: its status and a title. While it is processing, Slack shows Stop.

Where a person presses that, Slack ends the app's streams, and tells of it.

The session is noted on the event's row as a stream is, so whatever ends the event also closes the session
(``agent.event_hist_close``): a cancel, the last failure, the death of the last worker.
"""

import asyncio
from typing import Any, Literal

from surelane.slack import Place, place_of
from surelane_agents.calls import agent_calls
from surelane_agents.context.thread import TURN
from surelane_agents.people.board import cleaned
from surelane_worker import Context, Event, Handlers, Snooze
from surelane_worker.handling.asks import ignoring_final_errors
from surelane_worker.handling.context import attempt_of
from surelane_worker.handling.routes import STOPPED, addressed_text
from surelane_worker.slack.client import UNCLEAR, slack_error
from surelane_worker.slack.limits import SlackBusyError
from surelane_worker.slack.notes import Notebook
from surelane_worker.slack.tokens import owner_fields

Status = Literal["processing", "suspended", "closed"]
SESSION = "session"
"""The name of the note. Streams are noted by numbers, or under the names of steps."""
PATIENCE = 2.0
"""Seconds that a turn waits until Slack, and its limits, take a status. Then it goes on without."""
FRESH = 10.0
"""Seconds after which a status is set again: an earlier event of the thread may have closed the session."""
LONGEST_TITLE = 80
SOON = Snooze("2s")
"""A turn is locked. This may last, so it costs no attempts."""
REASON = "stopped in Slack"
"""``agent.said_since_turn`` and ``agent.event_hist_close`` know it, too."""
handlers = Handlers()


async def set_status(event: Event, ctx: Context, status: Status, **more: str | None) -> bool:
    """Set the status of the session of an event's thread. Return false where Slack does not take it."""
    await attempt_of(ctx).check_claim()
    place = place_of(event.payload)
    where: dict[str, Any] = {"channel_id": place.channel, "thread_ts": place.thread_ts, **more}
    try:
        async with asyncio.timeout(PATIENCE):
            await ctx.slack.client.agents_sessions_setStatus(**where, status=status)
    except (*UNCLEAR, SlackBusyError) as error:
        told = slack_error(error) or type(error).__name__
        ctx.log.info("Slack does not take the status of an agent session", status=status, error=told)
        return False
    return True


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


class TurnSession:
    """The session of one turn."""

    def __init__(self, event: Event, ctx: Context, place: Place) -> None:
        self._event, self._ctx, self._place = event, ctx, place
        self._status: Status | None = None
        self._until = 0.0
        self._refused = False

    @property
    def _notebook(self) -> Notebook:
        return attempt_of(self._ctx).notebooks.of(self._event)

    @property
    def is_open(self) -> bool:
        return self._notebook.stream(SESSION).get("stopped") is False

    async def process(self) -> bool:
        """Begin the session, or show that it goes on. Return false where Slack does not take it."""
        if self._refused:
            return False
        if self._status == "processing" and asyncio.get_running_loop().time() < self._until:
            return True
        if not self.is_open:
            await self._note(stopped=False)
        title = cleaned(addressed_text(self._event))[:LONGEST_TITLE]
        taken = await self._set("processing", title=title or None, initiator_user_id=self._place.user)
        if not taken:
            self._refused = True
            await self._notebook.forget("streams", SESSION)
        return taken

    async def show(self, status: Status) -> None:
        """Show that an open session goes on, or waits for people, in a turn that has come to something new."""
        if self.is_open and attempt_of(self._ctx).steps.past.is_over():
            await (self.process() if status == "processing" else self._set(status))

    async def close(self) -> None:
        """Close the session, if there is one."""
        if self.is_open and await self._set("closed"):
            await self._note(stopped=True)

    async def _set(self, status: Status, **more: str | None) -> bool:
        self._status, self._until = status, asyncio.get_running_loop().time() + FRESH
        return await set_status(self._event, self._ctx, status, **more)

    async def _note(self, *, stopped: bool) -> None:
        where = {"channel": self._place.channel, "thread_ts": self._place.thread_ts}
        more = {**where, "session": True, **owner_fields(self._event)}
        await self._notebook.note_stream(SESSION, None, stopped=stopped, **more)

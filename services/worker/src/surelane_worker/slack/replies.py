"""Replies: what a handler says in Slack is said once, however often its event is tried.

Each message carries the event's id and the reply's ordinal (the first reply of a handler, the second, …) in its
``metadata``. When an event was claimed before, and only then (the lookup is dear: some apps may do one a minute), a
reply that an earlier attempt already sent is found and not sent again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from surelane.events import Event
from surelane_service.engine import Engine
from surelane_service.logs import Logger
from surelane_worker.slack.client import RATE_LIMIT_RETRIES, SlackClients
from surelane_worker.slack.errors import (
    NowhereToReplyError,
    ResponseRefusedError,
    slack_error,
    unknown_whether_done,
)
from surelane_worker.slack.place import place_of
from surelane_worker.slack.sent import SentReplies, Thread, metadata_of
from surelane_worker.slack.stream import Notebook, Stream

PAUSES = (1.0, 4.0)
"""Seconds before a message is looked for, and posted again, whose fate is unknown."""
LONGEST_PAUSE = 300
"""Seconds that are waited at most where a response URL asks for a pause."""


class Replies:
    """What a handler says in Slack during one attempt."""

    def __init__(
        self, clients: SlackClients, engine: Engine, log: Logger, hold: Callable[[], Awaitable[None]]
    ) -> None:
        """``hold`` is asked before each message: it returns while the claim stands, and cancels the handler else."""
        self._client, self._once = clients.client, clients.once
        self._responses = clients.responses
        self._engine = engine
        self._log = log
        self._hold = hold
        self._ordinals: dict[int, int] = {}
        self._notebooks: dict[int, Notebook] = {}
        self._sent = SentReplies(clients.client, log)

    @property
    def client(self) -> AsyncWebClient:
        """The plain Web API client; what it sends is sent again on every attempt."""
        return self._client

    async def reply(self, event: Event, text: str | None = None, **arguments: Any) -> str | None:  # noqa: ANN401 - chat.postMessage's
        """Answers an event in its thread; a command or an interaction through its ``response_url``.

        Args:
            event: the event that is answered.
            text: what to say.
            arguments: any of ``chat.postMessage``'s: ``blocks``, ``channel`` and ``thread_ts`` to answer elsewhere, …

        Returns:
            The message's timestamp; ``None`` for an answer through a ``response_url``.

        Raises:
            SlackApiError: Slack refused it.
            NowhereToReplyError: the event names no place.
            ResponseUrlError: its ``response_url`` is neither Slack's nor the simulator's.
            ResponseRefusedError: Slack did not take the answer through the ``response_url``.
        """
        place = place_of(event)
        ordinal = self._next_ordinal(event)
        if place.response_url and "channel" not in arguments:
            await self._respond(place.response_url, text, arguments)
            return None
        channel = arguments.pop("channel", place.channel)
        if not channel:
            raise NowhereToReplyError
        thread_ts = arguments.pop("thread_ts", place.thread_ts)
        thread = Thread(channel, thread_ts, place.since)
        sent = await self._sent.before(event, thread)
        if ordinal in sent:
            self._log.info("reply was already sent", ordinal=ordinal)
            return sent[ordinal]
        message = {
            "channel": channel,
            "thread_ts": thread_ts,
            "text": text,
            **arguments,
            "metadata": metadata_of(event, ordinal),
        }
        return await self._post_once(event, ordinal, thread, message)

    async def _post_once(self, event: Event, ordinal: int, thread: Thread, message: dict[str, Any]) -> str:
        for pause in PAUSES:
            try:
                return await self._post(message)
            except (aiohttp.ClientError, TimeoutError, SlackApiError) as error:
                if not unknown_whether_done(error):
                    raise
                # It may have been posted and the answer lost: look before saying it again.
                self._log.warning("Slack did not answer", error=type(error).__name__)
                await asyncio.sleep(pause)
                found = await self._sent.look(event, thread)
                if ordinal in found:
                    return found[ordinal]
        return await self._post(message)

    async def _post(self, message: dict[str, Any]) -> str:
        await self._hold()
        response = await self._once.chat_postMessage(**message)
        return str(response["ts"])

    async def react(self, event: Event, name: str) -> None:
        """Adds an emoji to the event's message; it may be there already.

        Raises:
            SlackApiError: Slack refused it.
            NowhereToReplyError: the event is about no message.
        """
        place = place_of(event)
        if not place.channel or not place.message_ts:
            raise NowhereToReplyError
        try:
            await self._client.reactions_add(
                channel=place.channel, timestamp=place.message_ts, name=name.strip(":")
            )
        except SlackApiError as error:
            if slack_error(error) != "already_reacted":
                raise

    async def set_status(self, event: Event, status: str, **arguments: Any) -> None:  # noqa: ANN401 - the method's
        """Shows in the thread what is going on; an empty status removes it. Slack drops it after two minutes.

        Raises:
            SlackApiError: Slack refused it.
            NowhereToReplyError: the event is in no thread.
        """
        place = place_of(event)
        if not place.channel or not place.thread_ts:
            raise NowhereToReplyError
        await self._client.assistant_threads_setStatus(
            channel_id=place.channel, thread_ts=place.thread_ts, status=status, **arguments
        )

    def stream(self, event: Event, **arguments: Any) -> Stream:  # noqa: ANN401 - chat.startStream's
        """A reply that grows: ``async with ctx.slack.stream(event) as stream: await stream.append("…")``.

        An attempt that finds a stream of an earlier one finishes that message instead of beginning another.

        Raises:
            NowhereToReplyError: the event is in no thread.
        """
        place = place_of(event)
        channel = arguments.pop("channel", place.channel)
        thread_ts = arguments.pop("thread_ts", place.thread_ts)
        if not channel or not thread_ts:
            raise NowhereToReplyError
        arguments.setdefault("recipient_team_id", place.team)
        arguments.setdefault("recipient_user_id", place.user)
        ordinal = self._next_ordinal(event)
        notebook = self._notebooks.setdefault(event.id, Notebook(self._engine, event))
        return Stream(
            self._once,
            notebook,
            ordinal,
            metadata_of(event, ordinal),
            {"channel": channel, "thread_ts": thread_ts, **arguments},
            self._hold,
        )

    def _next_ordinal(self, event: Event) -> int:
        ordinal = self._ordinals.get(event.id, 0)
        self._ordinals[event.id] = ordinal + 1
        return ordinal

    async def _respond(self, url: str, text: str | None, arguments: dict[str, Any]) -> None:
        for _ in range(RATE_LIMIT_RETRIES):
            await self._hold()
            reply = await self._responses.post(url, {"text": text, **arguments})
            if reply.status == 200:
                return
            if reply.status != 429:
                break
            await asyncio.sleep(min(reply.retry_after, LONGEST_PAUSE))
        raise ResponseRefusedError(reply.status)

"""Reply in Slack once, even if the event is handled again.

The event's row says which were sent (:mod:`surelane_worker.slack.notes`): some apps may look once per minute.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property, partial
from hashlib import sha256
from io import SEEK_END, BytesIO
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Any

from slack_sdk.errors import SlackApiError
from slack_sdk.models.views import View
from slack_sdk.web.async_client import AsyncWebClient

from surelane.events import Event
from surelane.slack import Place, answered_at, object_in, place_of, response_url_of, text_in
from surelane_service.logs import Logger
from surelane_worker.slack.chunks import update_of
from surelane_worker.slack.client import (
    FINAL,
    RATE_LIMIT_RETRIES,
    UNCLEAR,
    NoTriggerError,
    NowhereToReplyError,
    PauseBudget,
    ResponseRefusedError,
    SlackClients,
    allowing,
    plain,
    slack_error,
    unknown_whether_done,
)
from surelane_worker.slack.limiter import check_after_wait
from surelane_worker.slack.limits import SlackBusyError
from surelane_worker.slack.marks import HandlersClient, Ordinal, metadata_of
from surelane_worker.slack.notes import Notebooks, SentReplies, Thread
from surelane_worker.slack.stream import INTERVAL, Begun, Stream, StreamMessage

SCOPE: ContextVar[str] = ContextVar("scope", default="")
"""The step that runs. Its replies are numbered by themselves: a later attempt may find it stored, and skip them."""

GONE = (404, 410)
"""What a response URL answers after thirty minutes, or five answers."""
RESPONSE_ONLY = ("response_type", "replace_original", "delete_original")
"""The arguments that only a response URL takes."""


class Replies:
    """Posts what a handler says in Slack during one attempt.

    Its methods raise ``SlackApiError`` if Slack refuses a call, and :class:`NowhereToReplyError` if neither the event
    nor an argument names the channel, the thread, the message or the modal that the call is about. Those that send
    something once raise :class:`ClaimLostError` if the worker has lost its claim of the event: nothing is sent then.
    Those that post raise :class:`ThreadGoneError` if the message that began the thread was deleted: nothing stays.
    """

    def __init__(
        self,
        clients: SlackClients,
        notebooks: Notebooks,
        log: Logger,
        check_claim: Callable[[], Awaitable[None]],
        check_new: Callable[[], Awaitable[None]] | None = None,
        come_to: Callable[[Ordinal], list[Any] | None] | None = None,
        *,
        owner: Event | None = None,
        first: int = 0,
        by_text: bool = True,
    ) -> None:
        """``check_claim`` is awaited before each message: it returns while the claim stands, or cancels the handler.

        It is awaited again when a call has waited for Slack's limits, also a call of the plain client. ``check_new`` is
        awaited instead before what no earlier attempt has sent. ``come_to`` is called with each reply's ordinal.
        All replies count as those to ``owner``, if it is given: they are numbered, noted and marked as its. Each
        event's are counted from ``first`` on. ``by_text``: digests of what they say are noted, too, and name them.
        """
        self._client, self._once = clients.client, clients.once
        self._responses = clients.responses
        self._notebooks = notebooks
        self._log = log
        self._check_claim, self._check_new = check_claim, check_new or check_claim
        check_after_wait.set(check_claim)
        self._come_to = come_to
        self._ordinals: dict[tuple[int, str], Iterator[int]] = defaultdict(partial(count, first))
        self._calls = Counter[tuple[int, str]]()
        self._owner = owner
        self._by_text = by_text
        self._sent = SentReplies(clients.client, log)

    @cached_property
    def client(self) -> AsyncWebClient:
        """The plain Web API client. Each attempt sends its calls again."""
        return HandlersClient.like(self._client)

    async def reply(self, event: Event, text: str | None = None, **arguments: Any) -> str | None:
        """Answer an event in its thread, or a command or an interaction through its ``response_url``.

        Slack takes five answers there in thirty minutes. A later one goes to the channel if it has
        ``response_type="in_channel"``, and to the person by a direct message otherwise.

        Args:
            arguments: any of ``chat.postMessage``'s; ``channel`` and ``thread_ts`` answer elsewhere.

        Returns:
            The message's timestamp; ``None`` for an answer through a ``response_url``, or where one had to be.

        Raises:
            ResponseUrlError: its ``response_url`` is neither Slack's nor the simulator's.
            ResponseRefusedError: Slack refused the answer through the ``response_url``.
            ReplyOrderError: replies that tasks send at once came in another order, so that one was lost.
            TypeError: the event is no event; the text may stand in its place.
        """
        if not isinstance(event, Event):
            raise TypeError(f"write reply(event, text): its first argument is a {type(event).__name__}")
        place, response_url = answered_at(event.payload), response_url_of(event.kind, event.payload)
        event = self._owner or event
        ordinal, notebook = self._next_ordinal(event), self._notebooks.of(event)
        if self._by_text and isinstance(ordinal, int):
            ordinal = notebook.number(ordinal, _digest(text, arguments))
        noted = notebook.reply(ordinal)
        if noted is not None:
            self._log.info("reply was already sent", ordinal=ordinal)
            return noted or None
        if response_url and "channel" not in arguments:
            try:
                await self._respond(response_url, text, {**_within(place, arguments), **arguments})
            except ResponseRefusedError as refused:
                if refused.status not in GONE:
                    raise
                return await self._reply_later(event, ordinal, place, text, arguments)
            await notebook.note_reply(ordinal, "")
            return None
        return await self._send(event, ordinal, place, text, arguments)

    async def _send(
        self, event: Event, ordinal: Ordinal, place: Place, text: str | None, arguments: dict[str, Any]
    ) -> str:
        notebook, arguments = self._notebooks.of(event), dict(arguments)
        thread = _taken(place, arguments)

        async def find() -> str | None:
            return (await self._sent.look(event, thread)).get(ordinal)

        if notebook.has_reply(ordinal) and (found := await self._sent.earlier(find)):
            self._log.info("reply was already sent", ordinal=ordinal)
            await notebook.note_reply(ordinal, found)
            return found
        metadata = metadata_of(event, ordinal, arguments.get("metadata"))
        where = {"channel": thread.channel, "thread_ts": thread.ts}
        message = {**where, "text": text, **arguments, "metadata": metadata}
        await self._check_new()
        notebook.place(ordinal, thread.channel)
        note, forget = partial(notebook.note_reply, ordinal), partial(notebook.forget, "replies", ordinal)
        return await self._sent.noted_once(partial(self._post, event, thread, message), find, note, forget)

    async def _reply_later(
        self, event: Event, ordinal: Ordinal, place: Place, text: str | None, arguments: dict[str, Any]
    ) -> str | None:
        """Send what a ``response_url`` no longer takes: to the channel if it is for all, or to the person alone.

        A direct message comes before an ephemeral one, which Slack shows only to a person who is active now.
        """
        rest = {name: value for name, value in arguments.items() if name not in RESPONSE_ONLY}
        original: dict[str, Any] = {"channel": str(place.channel), "ts": str(place.message_ts)}
        await self._check_new()
        if arguments.get("delete_original"):
            await allowing(FINAL, self._client.chat_delete(**original))
        elif not (
            arguments.get("replace_original")
            and await allowing(FINAL, self._client.chat_update(**original, **update_of(text, rest)))
        ):
            public = place.channel and arguments.get("response_type") == "in_channel"
            ways = [rest] if public else []
            ways += [{**rest, "channel": place.user, "thread_ts": None}] if place.user else []
            for way in ways:
                try:
                    return await self._send(event, ordinal, place, text, way)
                except SlackApiError as error:
                    if slack_error(error) not in FINAL:
                        raise
            if not (place.channel and place.user):
                raise ResponseRefusedError(GONE[0])
            await self.whisper(event, text, user=place.user, **{"channel": place.channel, **rest})
        await self._notebooks.of(event).note_reply(ordinal, "")
        return None

    async def _post(self, event: Event, thread: Thread, message: dict[str, Any]) -> str:
        await self._check_claim()
        return await self._sent.posted(event, thread, await self._once.chat_postMessage(**message))

    async def whisper(self, event: Event, text: str | None, **arguments: Any) -> None:
        """Show a message to one person, by default who caused the event, in its channel, and in its thread if any.

        Slack does not promise to show it, and cannot be asked whether it did. So it is not sent again where Slack may
        have taken it. Each attempt sends it.

        Args:
            arguments: any of ``chat.postEphemeral``'s.
        """
        place = answered_at(event.payload)
        arguments = {"user": place.user, **arguments}
        thread = _taken(place, arguments)
        await self._sent.check_thread(event, thread)
        if thread.ts == place.message_ts:  # Slack shows it in a thread only if the thread has replies
            thread = replace(thread, ts=place.around)
        await self._check_claim()
        try:
            await self._once.chat_postEphemeral(
                channel=thread.channel, thread_ts=thread.ts, text=text, **arguments
            )
        except UNCLEAR as error:
            if not unknown_whether_done(error):
                raise
            self._log.warning("Slack did not say whether it showed a message to a person")

    async def react(self, event: Event, name: str) -> None:
        """Add an emoji to the event's message. It may be there already. A refusal is logged, and fails nothing."""
        place = place_of(event.payload)
        where: dict[str, Any] = {"channel": place.channel, "timestamp": place.message_ts}
        add = partial(self._client.reactions_add, name=name.strip(":"), **where)
        await self._decorate(add, *where.values())

    async def set_status(self, event: Event, status: str, **arguments: Any) -> None:
        """Show in the thread what is going on. An empty status removes it. Slack drops it after two minutes.

        A refusal is logged, and fails nothing.
        """
        thread = _thread_of(event)
        set_ = partial(self._client.assistant_threads_setStatus, **thread, status=status, **arguments)
        await self._decorate(set_, *thread.values())

    async def set_title(self, event: Event, title: str, **arguments: Any) -> None:
        """Give an assistant's thread a title. A refusal is logged, and fails nothing."""
        thread = _thread_of(event)
        set_ = partial(self._client.assistant_threads_setTitle, **thread, title=title, **arguments)
        await self._decorate(set_, *thread.values())

    async def set_suggested_prompts(self, event: Event, prompts: Mapping[str, str], **arguments: Any) -> None:
        """Offer prompts in an assistant's thread: each title with the message that it sends.

        A refusal is logged, and fails nothing.
        """
        thread = _thread_of(event)
        offered = [{"title": title, "message": message} for title, message in prompts.items()]
        set_ = partial(
            self._client.assistant_threads_setSuggestedPrompts, **thread, prompts=offered, **arguments
        )
        await self._decorate(set_, thread["channel_id"])

    async def _decorate(self, call: Callable[[], Awaitable[object]], *place: str | None) -> None:
        """Make a call for which no event should fail, if it has its ``place``."""
        await self._check_claim()
        try:
            if all(place):
                await allowing(("already_reacted",), call())
            else:
                self._log.warning("the event has no place for a status, a title, prompts or a reaction")
        except (*UNCLEAR, SlackBusyError) as error:
            told = slack_error(error) or type(error).__name__
            self._log.warning("Slack refused a status, a title, prompts or a reaction", error=told)

    async def open_view(self, event: Event, view: dict[str, Any] | View) -> str | None:
        """Open a modal in front of the person who caused the event, once. Slack allows three seconds for it.

        Returns:
            The view's id; ``None`` if Slack opened it without an answer that says so.

        Raises:
            SlackApiError: ``expired_trigger_id`` after the three seconds.
            NoTriggerError: the event is no command or interaction.
        """
        trigger = text_in(event.payload.get("trigger_id"))
        if trigger is None:
            raise NoTriggerError
        name = self._call_name(event, "views.open")
        notebook = self._notebooks.of(event)
        if (opened := notebook.call(name)) is not None:
            self._log.info("view was already opened")
            return opened or None
        await self._check_new()
        repeated = event.claim > 1 and name.endswith(":0")
        call = partial(self._once.views_open, trigger_id=trigger, view=view)
        try:
            try:
                answer = await call()
            except UNCLEAR as error:
                if not unknown_whether_done(error):
                    raise
                repeated = True  # a second call tells whether Slack has opened the view
                answer = await call()
            opened = str(answer["view"]["id"])
        except SlackApiError as error:
            # Only this app has the trigger, so this or an earlier attempt used it up.
            if slack_error(error) != "exchanged_trigger_id" or not repeated:
                raise
            self._log.info("view was already opened")
            opened = ""
        await notebook.note_call(name, opened)
        return opened or None

    async def update_view(
        self, event: Event, view: dict[str, Any] | View, *, view_id: str | None = None, **arguments: Any
    ) -> None:
        """Replace a modal's content. Each attempt does it again, with the same result.

        Args:
            view_id: the modal's id, as :meth:`open_view` returned it; by default the event's own modal.
            arguments: any of ``views.update``'s, such as ``external_id`` instead of ``view_id``.
        """
        if view_id is None and "external_id" not in arguments:
            view_id = text_in(object_in(event.payload.get("view")).get("id"))
            if view_id is None:
                raise NowhereToReplyError
        await self._check_claim()
        await self._client.views_update(view=view, view_id=view_id, **arguments)

    async def publish_home(self, user: str, view: dict[str, Any] | View, **arguments: Any) -> None:
        """Show a view on a person's *Home* tab of the app. Each attempt does it again, with the same result."""
        await self._check_claim()
        await self._client.views_publish(user_id=user, view=view, **arguments)

    async def upload(
        self, event: Event, file: str | PathLike[str] | bytes, *, comment: str | None = None, **arguments: Any
    ) -> str:
        """Post a file in the event's thread, once: a later attempt looks for it before it posts it again.

        Args:
            file: the file's path, or its bytes.
            comment: the message that comes with the file.
            arguments: any of slack-sdk's ``files_upload_v2``, such as ``filename`` and ``title``; ``channel`` and
                ``thread_ts`` post elsewhere.

        Returns:
            The file's id, once Slack has shared the file. One that it does not share within seven seconds is logged.

        Raises:
            aiohttp.ClientError: its bytes could not be sent.
        """
        thread, event = _taken(place_of(event.payload), arguments), self._owner or event
        name = self._call_name(event, "files.upload")
        notebook = self._notebooks.of(event)
        if uploaded := notebook.call(name):
            self._log.info("file was already uploaded")
            return uploaded
        shown = {each: arguments.pop(each, None) for each in ("title", "highlight_type")}
        earlier = notebook.call(f"{name}:sent")
        if (sent := earlier) is None:
            sent = await self._send_file(file, arguments)
            await notebook.note_call(f"{name}:sent", sent, must=True)
        share = partial(self._share, {"id": sent, **shown}, thread, comment)
        find = partial(self._sent.file, thread, sent)
        if not (uploaded := earlier and await self._sent.earlier(find)):
            await self._sent.check_thread(
                event, thread
            )  # Slack's answer does not tell where it posted the file
            uploaded = await self._sent.once(share, find)
        await notebook.note_call(name, uploaded)
        await self._sent.check_shared(uploaded)
        return uploaded

    async def _send_file(self, file: str | PathLike[str] | bytes, arguments: dict[str, Any]) -> str:
        """Send a file's bytes to Slack, where people do not see it yet. Return its id."""
        if not isinstance(file, bytes):
            arguments.setdefault("filename", Path(file).name)
        filename = arguments.pop("filename", None) or "Uploaded file"
        # It is read while it is sent, so a large one is never in memory as a whole.
        with BytesIO(file) if isinstance(file, bytes) else await asyncio.to_thread(open, file, "rb") as data:
            length = data.seek(0, SEEK_END)
            data.seek(0)
            await self._check_new()
            begun = await self._client.files_getUploadURLExternal(
                filename=filename, length=length, **arguments
            )
            session = self._client.session
            assert session is not None  # noqa: S101 - slack_clients sets it
            where, headers = str(begun["upload_url"]), {"Content-Type": "application/octet-stream"}
            async with session.post(where, data=data, headers=headers, proxy=self._client.proxy) as answer:
                answer.raise_for_status()
        return str(begun["file_id"])

    async def _share(self, file: dict[str, Any], thread: Thread, comment: str | None) -> str:
        await self._check_new()
        await self._once.files_completeUploadExternal(
            files=[file], channel_id=thread.channel, thread_ts=thread.ts, initial_comment=comment
        )
        return str(file["id"])

    def stream(self, event: Event, *, interval: float = INTERVAL, **arguments: Any) -> Stream:
        """Return a reply that grows: ``async with ctx.slack.stream(event) as stream: await stream.append("…")``.

        If an earlier attempt began a stream, this attempt finishes that message.

        Args:
            interval: seconds between two calls to Slack, in which text is gathered; 0 sends every text at once.
            arguments: any of ``chat.startStream``'s; ``channel`` and ``thread_ts`` answer elsewhere. Also
                ``unfurl_links`` and ``unfurl_media``, for a text that is posted because Slack refused its stream, and
                ``session_status`` of ``chat.stopStream``.
        """
        place = place_of(event.payload)
        thread = _taken(place, arguments)
        if not thread.ts:
            raise NowhereToReplyError
        arguments.setdefault("recipient_team_id", place.team)
        arguments.setdefault("recipient_user_id", place.user)
        event = self._owner or event
        ordinal, notebook = self._next_ordinal(event), self._notebooks.of(event)

        def message(number: int) -> StreamMessage:
            name = f"{ordinal}.{number}" if number else ordinal
            begun = Begun(event, name, thread, notebook, self._sent)
            return StreamMessage(self._once, begun, arguments, self._check_claim)

        return Stream(message, interval)

    def _next_ordinal(self, event: Event) -> Ordinal:
        scope = SCOPE.get()
        ordinal = next(self._ordinals[event.id, scope])
        if self._come_to is not None and (step := self._come_to(ordinal)) is not None:
            self._notebooks.of(event).place_past(ordinal, step)
        return f"{scope}:{ordinal}" if scope else ordinal

    def _call_name(self, event: Event, method: str) -> str:
        """Return the name of this call in the event's notes: its method and its ordinal in this attempt."""
        method = f"{method}:{SCOPE.get()}" if SCOPE.get() else method
        self._calls[event.id, method] += 1
        return f"{method}:{self._calls[event.id, method] - 1}"

    async def _respond(self, url: str, text: str | None, arguments: dict[str, Any]) -> None:
        budget = PauseBudget()
        for _ in range(RATE_LIMIT_RETRIES):
            await self._check_new()
            reply = await self._responses.post(url, {"text": text, **arguments})
            if reply.status == 200:
                return
            if reply.status != 429:
                break
            await budget.wait(reply.retry_after)
        raise ResponseRefusedError(reply.status)


def _digest(text: str | None, arguments: Mapping[str, Any]) -> str:
    said = json.dumps([text, arguments], default=lambda value: str(plain(value)), skipkeys=True)
    return sha256(said.encode(errors="replace")).hexdigest()[:12]


def _taken(place: Place, arguments: dict[str, Any]) -> Thread:
    """Take out of a message's arguments where it is to stand: by default at the place of the event."""
    channel = arguments.pop("channel", place.channel)
    if not channel:
        raise NowhereToReplyError
    thread_ts = place.thread_ts if channel == place.channel else None
    return Thread(channel, arguments.pop("thread_ts", thread_ts), place.since)


def _within(place: Place, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what lets the answer through a response URL stand in the thread of the click or the command."""
    if place.around is None or arguments.get("replace_original") or arguments.get("delete_original"):
        return {}
    return {"thread_ts": place.around, "replace_original": False}


def _thread_of(event: Event) -> dict[str, Any]:
    """Return the event's thread as the methods of assistants' threads name it."""
    place = place_of(event.payload)
    return {"channel_id": place.channel, "thread_ts": place.thread_ts}

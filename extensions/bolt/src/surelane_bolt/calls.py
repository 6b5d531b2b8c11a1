"""Send the calls of a Bolt app's clients: fenced by the claim, and without repeating what an earlier attempt sent.

A call goes through the worker's HTTP session, with its retries and its spans, and with the token of the app's client.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse
from slack_sdk.web.client import WebClient

from surelane.events import Event
from surelane.slack import place_of
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.slack.client import NO_THREAD, UNCLEAR, slack_error, unknown_whether_done
from surelane_worker.slack.limiter import check_after_wait
from surelane_worker.slack.marks import Unmarked
from surelane_worker.slack.notes import SentReplies, Thread
from surelane_worker.slack.stream import Begun

Client = AsyncWebClient | WebClient
_pointed = WeakSet[Client]()
"""The clients that call where the worker says: in tests, each test has its own Slack."""

PART = 10_000
"""The distance of the parts' first ordinals: part 0 counts from 0 on, part 1 from 10,000 on, and so on.

Parts may run at the same time, and a part may be missing in an attempt. So each counts its own messages.
"""

ONCE = frozenset(
    {
        "chat.postEphemeral",
        "chat.scheduleMessage",
        "files.completeUploadExternal",
        "functions.completeError",
        "functions.completeSuccess",
        "views.open",
        "views.push",
    }
)
"""Methods whose answer is kept on the event's row. A later attempt returns it and does not call them again."""

INTO_THREADS = "chat.postEphemeral", "chat.scheduleMessage", "files.completeUploadExternal"
"""Those of them that Slack would do in the channel, for all to read, where the thread is gone."""

DONE = {
    "chat.delete": "message_not_found",
    "chat.deleteScheduledMessage": "invalid_scheduled_message_id",
    "conversations.archive": "already_archived",
    "conversations.invite": "already_in_channel",
    "conversations.kick": "not_in_channel",
    "conversations.unarchive": "not_archived",
    "files.delete": "file_deleted",
    "functions.completeError": "execution_not_in_running_state",
    "functions.completeSuccess": "execution_not_in_running_state",
    "pins.add": "already_pinned",
    "pins.remove": "no_pin",
    "reactions.add": "already_reacted",
    "reactions.remove": "no_reaction",
    "views.open": "exchanged_trigger_id",
    "views.push": "exchanged_trigger_id",
}
"""By method, Slack's error if the call was made before: by an earlier attempt, or without an answer that says so."""


class _Posting(AsyncWebClient):
    """A client that keeps the answer to its last call."""

    answer: AsyncSlackResponse | None = None

    async def api_call(self, api_method: str, **request: Any) -> AsyncSlackResponse:
        self.answer = await super().api_call(api_method, **request)
        return self.answer


@dataclass(eq=False)
class SlackCalls:
    """The calls of one attempt. Use it on the worker's event loop."""

    event: Event
    ctx: Context

    def __post_init__(self) -> None:
        self._attempt = attempt_of(self.ctx)
        self._counted = Counter[tuple[int, str]]()
        self._streams: dict[str, int] = {}
        """The ordinals of this attempt's streams by timestamp."""
        self._ended = set[str]()
        """The timestamps of streams that an earlier attempt finished."""

    async def send(
        self, part: int, client: Client, method: str, request: dict[str, Any]
    ) -> AsyncSlackResponse:
        """Send one call of ``client``, and return Slack's answer. If an earlier attempt made it, return that answer.

        ``part`` of the listener makes the call. ``request``: the other arguments of slack-sdk's ``api_call``.
        The call is cancelled if the claim no longer stands. The answer has no mark of a reply, on any page.
        """
        once = like(client, self._attempt.clients.client)
        return Unmarked.of(await self._send(part, client, once, method, request), once)

    async def _send(
        self, part: int, client: Client, once: AsyncWebClient, method: str, request: dict[str, Any]
    ) -> AsyncSlackResponse:
        check_after_wait.set(self._attempt.check_claim)  # an App's call has a task of its own
        await self._attempt.check_claim()
        if isinstance(client, WebClient):
            request = _as_texts(request)
        given = _arguments(request)
        if given is not None:
            if method == "chat.postMessage":
                return await self._post(part, client, given)
            if method in ONCE:
                return await self._send_once(part, client, method, request)
            if method in ("chat.startStream", "chat.appendStream", "chat.stopStream"):
                return await self._stream(part, client, method, given, request)
        try:
            return await once.api_call(method, **request)
        except SlackApiError as error:
            if self.event.claim == 1 or slack_error(error) != DONE.get(method, ""):
                raise
            self.ctx.log.info("an earlier attempt made this call", method=method)
            return _answer(once, method, {"ok": True})

    async def respond(self, part: int, message: dict[str, Any]) -> None:
        """Answer through the event's ``response_url``; see :meth:`Replies.reply`."""
        replies = self._attempt.replies_through(self._attempt.clients, self._next(part, "reply"))
        text = message.pop("text", None)
        await replies.reply(self.event, text, **message)

    async def _post(self, part: int, client: Client, message: dict[str, Any]) -> AsyncSlackResponse:
        own = self._attempt.clients
        once = like(client, own.once)
        theirs = replace(own, client=like(client, own.client), once=once)
        replies = self._attempt.replies_through(theirs, self._next(part, "reply"))
        text, thread_ts = message.pop("text", None), message.pop("thread_ts", None)
        channel = message.pop("channel", None)
        ts = await replies.reply(self.event, text, channel=channel, thread_ts=thread_ts, **message)
        if once.answer is not None and once.answer.get("ts") == ts:
            return once.answer
        posted = {"type": "message", "ts": ts, "text": text, "thread_ts": thread_ts}
        shown = {name: value for name, value in posted.items() if value is not None}
        return _answer(once, "chat.postMessage", {"ok": True, "channel": channel, "ts": ts, "message": shown})

    async def _send_once(
        self, part: int, client: Client, method: str, request: dict[str, Any]
    ) -> AsyncSlackResponse:
        name = f"bolt:{method}:{self._next(part, method)}"
        notebook, once = self._attempt.notebooks.of(self.event), like(client, self._attempt.clients.once)
        if made := notebook.call(name):
            self.ctx.log.info("an earlier attempt made this call", method=method)
            return _answer(once, method, json.loads(made))
        given = _arguments(request) or {}
        if method in INTO_THREADS and given.get("thread_ts"):
            thread = Thread(str(given.get("channel") or given.get("channel_id")), given["thread_ts"], None)
            await SentReplies(once, self.ctx.log).check_thread(self.event, thread)
        try:
            answer = await once.api_call(method, **request)
        except UNCLEAR as error:
            if not unknown_whether_done(error):
                raise
            answer = await self._send_unless_done(once, method, request, given)
        await notebook.note_call(name, json.dumps(_short(answer.data)))
        return answer

    async def _send_unless_done(
        self, once: AsyncWebClient, method: str, request: dict[str, Any], given: Mapping[str, Any]
    ) -> AsyncSlackResponse:
        """Make a call again of which Slack did not say whether it is done, unless Slack shows that it is."""
        self.ctx.log.warning("Slack did not say whether it made a call", method=method)
        sent = SentReplies(self._attempt.clients.client, self.ctx.log)
        done: Mapping[str, Any] | None = None
        if method == "chat.postEphemeral":
            done = {}  # nothing can show it, and Slack does not promise to deliver it
        elif method == "chat.scheduleMessage":
            done = await sent.scheduled(given)
        elif method == "files.completeUploadExternal" and (channel := given.get("channel_id")):
            files = given.get("files")
            files = json.loads(files) if isinstance(files, str) else files
            thread = Thread(channel, given.get("thread_ts"), place_of(self.event.payload).since)
            done = {"files": files} if files and await sent.file(thread, files[0]["id"]) else None
        if done is not None:
            return _answer(once, method, {"ok": True, **done})
        try:
            return await once.api_call(method, **request)
        except SlackApiError as error:
            if slack_error(error) != DONE.get(method):
                raise
            return _answer(once, method, {"ok": True})

    async def _stream(
        self, part: int, client: Client, method: str, given: dict[str, Any], request: dict[str, Any]
    ) -> AsyncSlackResponse:
        """Start, extend or finish a stream. A stream that an earlier attempt finished stays as it is."""
        once = like(client, self._attempt.clients.once)
        if method == "chat.startStream":
            return await self._start_stream(part, once, given, request)
        ts = str(given.get("ts"))
        if ts in self._ended:
            return _answer(once, method, {"ok": True, "channel": given.get("channel"), "ts": ts})
        answer = await once.api_call(method, **request)
        if method == "chat.stopStream" and ts in self._streams:
            notebook = self._attempt.notebooks.of(self.event)
            await notebook.note_stream(self._streams[ts], ts, stopped=True)
        return answer

    async def _start_stream(
        self, part: int, client: AsyncWebClient, given: dict[str, Any], request: dict[str, Any]
    ) -> AsyncSlackResponse:
        ordinal, notebook = self._next(part, "stream"), self._attempt.notebooks.of(self.event)
        earlier, channel = notebook.stream(ordinal), given.get("channel")
        if earlier.get("stopped"):
            self._ended.add(earlier["ts"])
            return _answer(client, "chat.startStream", {"ok": True, "channel": channel, "ts": earlier["ts"]})
        place = Thread(str(channel), given.get("thread_ts"), place_of(self.event.payload).since)
        sent = SentReplies(self._attempt.clients.client, self.ctx.log)
        begun = Begun(self.event, ordinal, place, notebook, sent, marked=False)
        if unfinished := await begun.earlier():
            await begun.remove(client, unfinished)  # the rest of its text is not known

        async def start() -> str:
            return str((await client.api_call("chat.startStream", **request))["ts"])

        try:
            ts = await begun.begin(start)
        except SlackApiError as error:
            if slack_error(error) in NO_THREAD:
                await sent.check_thread(self.event, place)
            raise
        self._streams[ts] = ordinal
        return _answer(client, "chat.startStream", {"ok": True, "channel": channel, "ts": ts})

    def _next(self, part: int, sort: str) -> int:
        """Return the ordinal of the next call of a sort in a part of the listener."""
        self._counted[part, sort] += 1
        return part * PART + self._counted[part, sort] - 1


def point_at(client: Client, api: str) -> None:
    """Let a client of the app call the Web API at ``api``, unless the app has named an address of its own."""
    if client.base_url == AsyncWebClient.BASE_URL or client in _pointed:
        client.base_url = api
        _pointed.add(client)


def like(client: Client, model: AsyncWebClient) -> "_Posting":
    """Return a client with the token and the address of ``client``, and the session and the retries of ``model``."""
    session = getattr(client, "session", None) or model.session
    made = _Posting(logger=client.logger, session=session, retry_handlers=model.retry_handlers)
    for name in ("token", "base_url", "timeout", "ssl", "proxy"):
        setattr(made, name, getattr(client, name))
    made.headers, made.default_params = dict(client.headers), dict(client.default_params)
    return made


def _arguments(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a method's arguments; ``None`` if they are no mapping, such as a body that is encoded already."""
    given: dict[str, Any] = {}
    for name in ("params", "data", "json"):
        part = request.get(name)
        if part is not None and not isinstance(part, Mapping):
            return None
        given |= {key: value for key, value in (part or {}).items() if value is not None}
    return given


def _as_texts(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with its queries and forms as a synchronous client sends them: each value by ``str``."""

    def text(value: object) -> object:
        if value is None or isinstance(value, str | int | float):
            return value
        return value.decode() if isinstance(value, bytes) else str(value)

    forms = {name: request[name] for name in ("params", "data") if isinstance(request.get(name), Mapping)}
    texts = {name: {key: text(value) for key, value in form.items()} for name, form in forms.items()}
    return {**request, **texts}


def _answer(client: AsyncWebClient, method: str, data: dict[str, Any]) -> AsyncSlackResponse:
    made: dict[str, Any] = {"client": client, "http_verb": "POST", "api_url": client.base_url + method}
    return AsyncSlackResponse(**made, req_args={}, data=data, headers={}, status_code=200)


def _short(value: Any) -> Any:
    """Return an answer as its row keeps it: without long texts and lists, such as the blocks of a view."""
    if isinstance(value, dict):
        short = {
            name: _short(part) for name, part in value.items() if name not in ("blocks", "state", "message")
        }
        return {name: part for name, part in short.items() if part is not None}
    if isinstance(value, list):
        return [_short(part) for part in value[:10]]
    return None if isinstance(value, str) and len(value) > 200 else value

"""Make the clients for Slack, and sort the errors of their calls into final ones and others.

The Web API's clients share one HTTP session; the client for response URLs has a guarded one.

A ``response_url`` comes from an event's payload, so it proves nothing. Answers go to Slack's own hosts or to the
simulator's, and nowhere else. slack-sdk's webhook client follows redirects, reads answers of any size, and has no
setting against either, so the request is made here.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.http_retry.builtin_async_handlers import (
    AsyncConnectionErrorRetryHandler,
    AsyncRateLimitErrorRetryHandler,
    AsyncServerErrorRetryHandler,
)
from slack_sdk.http_retry.request import HttpRequest
from slack_sdk.http_retry.response import HttpResponse
from slack_sdk.http_retry.state import RetryState
from slack_sdk.models import JsonObject
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse
from yarl import URL

from surelane_service.logs import Logger
from surelane_service.outbound import PublicResolver, Reply, guarded_session, post, seconds_asked
from surelane_worker.slack.limiter import Limiter, admitting
from surelane_worker.slack.limits import LONGEST_WAIT, SlackBusyError
from surelane_worker.worker_settings import WorkerSettings

FINAL = frozenset(
    """
    invalid_auth not_authed account_inactive token_revoked token_expired org_login_required missing_scope
    no_permission not_allowed_token_type ekm_access_denied team_access_not_granted
    channel_not_found not_in_channel is_archived user_not_found message_not_found cant_update_message
    cant_delete_message edit_window_closed thread_not_found restricted_action
    restricted_action_read_only_channel restricted_action_thread_only_channel cannot_reply_to_message
    cannot_dm_bot messages_tab_disabled channel_type_not_supported
    no_text msg_too_long msg_blocks_too_long invalid_blocks invalid_blocks_format invalid_arguments
    invalid_arg_name invalid_array_arg invalid_name missing_argument unknown_method bad_timestamp
    metadata_must_be_sent_from_app metadata_too_large invalid_metadata_format invalid_metadata_schema
    expired_trigger_id exchanged_trigger_id hash_conflict push_limit_reached view_too_large
    duplicate_external_id not_enabled not_found file_not_found invalid_trigger_id used_url expired_url
    user_not_in_channel user_is_bot access_denied accesslimited enterprise_is_restricted team_not_found is_inactive
    two_factor_setup_required deprecated_endpoint method_deprecated as_user_not_supported invalid_post_type
    restricted_action_non_threadable_channel cant_broadcast_message block_mismatch invalid_attachments
    too_many_attachments too_many_contact_cards attachment_payload_limit_exceeded external_ids_limit_reached
    duplicate_channel_not_found duplicate_message_not_found slack_connect_canvas_sharing_blocked
    slack_connect_file_link_sharing_blocked slack_connect_lists_sharing_blocked
    """.split()  # noqa: SIM905 - a list literal would fill a page
)
"""Slack's errors that no further attempt can solve: of the token, of the place, and of what was sent."""
OF_TOKEN = frozenset({"invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired"})
"""Those that are of the token. An install or a refresh may have replaced it meanwhile."""

UNANSWERABLE = frozenset({400, 404, 410, *range(300, 400)})
"""Final statuses of a response_url: it is used up, expired, refuses the message, or redirects."""


class SentenceError(Exception):
    """An error whose class says it in one sentence."""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


class NowhereToReplyError(SentenceError):
    """The event names no channel and no response_url: pass ``channel=``."""


class ThreadGoneError(Exception):
    """The thread in which an event is answered is gone, so nothing is shown. The worker cancels the event."""

    def __init__(self, identity: int) -> None:
        """``identity``: the event's id."""
        super().__init__("its thread is gone: the message that began it was deleted")
        self.identity = identity


class ReplyOrderError(SentenceError):
    """Replies came in another order than in an earlier attempt, so one was taken for another: send each in a step."""


class NoTriggerError(SentenceError):
    """The event has no trigger_id: only commands and interactions can open a view."""


class ResponseRefusedError(Exception):
    """Slack refused an answer to a command or an interaction."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the response_url answered {status}")
        self.status = status


class ResponseUrlError(SentenceError):
    """The response_url is neither Slack's nor the simulator's at SLACK_API_URL: nothing was sent."""


NO_THREAD = frozenset({"thread_not_found", "invalid_thread_ts", "message_not_found"})
"""How Slack says that a thread's first message does not exist."""
UNREADABLE = frozenset(
    {"missing_scope", "not_in_channel", "channel_not_found", "method_not_supported_for_channel_type"}
)
"""Slack's errors after which nothing can be read. A reply is then posted: rather twice than never."""
PAGES = 10
"""Most pages of messages that are read."""


async def messages_of(
    first: Awaitable[AsyncSlackResponse], log: Logger, unreadable: Container[object] = UNREADABLE | NO_THREAD
) -> AsyncIterator[dict[str, Any]]:
    """Yield the messages of a channel or a thread, from the call for the first page on; none after these errors."""
    pages = 0
    try:
        async for page in await first:
            for message in page.get("messages") or []:
                yield message
            pages += 1
            if pages == PAGES:
                return
    except SlackApiError as error:
        if slack_error(error) not in unreadable:
            raise
        log.warning("cannot read earlier messages", error=slack_error(error))


def slack_error(error: BaseException | None) -> str | None:
    """Return Slack's name for an error, such as ``channel_not_found``, or ``None`` if it is not an error of Slack's."""
    if not isinstance(error, SlackApiError):
        return None
    said = getattr(error.response, "data", error.response)  # any JSON
    answered = said.get("error") if hasattr(said, "get") else None
    return answered if isinstance(answered, str) else None


async def allowing(errors: Container[object] | None, call: Awaitable[object]) -> bool:
    """Await a call. Return false if Slack answered with one of these errors; ``None``: with any error."""
    try:
        await call
    except SlackApiError as error:
        if errors is not None and slack_error(error) not in errors:
            raise
        return False
    return True


def final_reason(error: BaseException) -> str | None:
    """Return the reason, for history, why no further attempt can succeed, or ``None`` if one may."""
    match error:
        case NowhereToReplyError():
            return "nowhere_to_reply"
        case NoTriggerError():
            return "no_trigger"
        case ThreadGoneError():
            return "thread_gone"
        case ResponseUrlError():
            return "response_url_refused"
        case ResponseRefusedError(status=status) if status in UNANSWERABLE:
            return "response_refused"
    answered = slack_error(error)
    return answered if answered in FINAL else None


PERHAPS_DONE = frozenset(
    {"fatal_error", "internal_error", "request_timeout", "service_unavailable", "team_added_to_org"}
)
"""Slack's errors with HTTP 200 after which the call may have been done. Slack says so of the first two itself."""
LIMITED = frozenset({"ratelimited", "rate_limited"})
PASSING = PERHAPS_DONE | LIMITED
"""Slack's errors that are gone later."""
UNCLEAR = (aiohttp.ClientError, TimeoutError, OSError, SlackApiError, AttributeError, ValueError)
"""What a call raises without a clear answer. slack-sdk raises the last two for a body that is no JSON object."""


def unknown_whether_done(error: BaseException) -> bool:
    """Return whether Slack may have done what a failed call asked for: its answer is none, or does not say."""
    if not isinstance(error, SlackApiError):
        return True
    named, response = slack_error(error), error.response
    status: int = getattr(response, "status_code", None) or getattr(response, "status", None) or 200
    return status >= 500 or named in PERHAPS_DONE or (named is None and status < 400)


RATE_LIMIT_RETRIES = 10
"""Most retries after a rate limit. Each waits as long as Slack asks; heartbeats renew the lease meanwhile."""


@dataclass(eq=False)
class PauseBudget:
    """Waits as long as Slack asks, for one call: two minutes in all, during which its handler keeps its slot."""

    waited: float = 0.0

    async def wait(self, seconds: float) -> None:
        """Wait. Raise :class:`SlackBusyError` where that would take too long in all: the event is snoozed."""
        if self.waited + seconds > LONGEST_WAIT:
            raise SlackBusyError(seconds)
        self.waited += seconds
        await asyncio.sleep(seconds + random.random())  # noqa: S311 - no secret


class RateLimitHandler(AsyncRateLimitErrorRetryHandler):
    """Sends a call again once Slack's pause is over; slack-sdk's own waits for any time, and reads numbers alone.

    Slack also limits calls with HTTP 200, and the body of a 429 need not be JSON: it is then told as an error.
    """

    async def _can_retry_async(
        self,
        *,
        state: RetryState,  # noqa: ARG002 - slack-sdk's interface
        request: HttpRequest,  # noqa: ARG002
        response: HttpResponse | None = None,
        error: Exception | None = None,
    ) -> bool:
        if response is None:
            return getattr(getattr(error, "response", None), "status", None) == HTTPStatus.TOO_MANY_REQUESTS
        limited = response.status_code == HTTPStatus.TOO_MANY_REQUESTS
        return limited or (isinstance(response.body, dict) and str(response.body.get("error")) in LIMITED)

    async def prepare_for_next_attempt_async(
        self,
        *,
        state: RetryState,
        request: HttpRequest,  # noqa: ARG002
        response: HttpResponse | None = None,
        error: Exception | None = None,
    ) -> None:
        """Wait as long as Slack asks, or put the event off."""
        state.custom_values = state.custom_values or {"budget": PauseBudget()}
        headers = (error.response if isinstance(error, SlackApiError) else response).headers  # type: ignore[union-attr]
        named = {name.title(): each if isinstance(each, str) else each[0] for name, each in headers.items()}
        await state.custom_values["budget"].wait(seconds_asked(named))
        state.next_attempt_requested = True
        state.increment_current_attempt()


TIMEOUT = aiohttp.ClientTimeout(total=300, sock_connect=10, sock_read=30)
"""Seconds. ``total`` includes the wait for a free connection; 30 seconds without a byte from Slack end a call."""

SLACK_ORIGINS = frozenset({URL("https://hooks.slack.com"), URL("https://hooks.slack-gov.com")})
"""The origins of Slack's response URLs."""
LONGEST_URL = 2000
"""Most characters of a response URL. Slack's have about a hundred."""


@dataclass(eq=False)
class ResponseUrls:
    """Posts answers to response URLs."""

    simulator: frozenset[URL]
    """The simulator's origin, which is allowed, too; none if Slack is not simulated."""
    proxy: str | None = None
    """The HTTP proxy to Slack."""
    traces: Sequence[aiohttp.TraceConfig] = ()

    def __post_init__(self) -> None:
        trusted = [url.host for url in (*self.simulator, URL(self.proxy or "")) if url.host]
        self._session = guarded_session(PublicResolver(trusted=trusted), traces=self.traces)

    async def close(self) -> None:
        await self._session.close()

    async def post(self, url: str, message: dict[str, Any]) -> Reply:
        """Post a message, without its members that are ``None``.

        Raises:
            ResponseUrlError: the URL is neither Slack's nor the simulator's.
            PrivateAddressError: a host name of Slack's resolves to a private address.
            aiohttp.ClientError, TimeoutError, OSError: no answer came.
        """
        if len(url) > LONGEST_URL or not is_at(url, SLACK_ORIGINS | self.simulator):
            raise ResponseUrlError
        given = {name: value for name, value in message.items() if value is not None}
        body = json.dumps(given, default=_plain).encode()
        return await post(self._session, str(URL(url)), body, {}, proxy=self.proxy)


def is_at(url: str, origins: frozenset[URL]) -> bool:
    """Return whether a URL is at one of these origins, without a user."""
    try:
        return not URL(url).user and URL(url).origin() in origins
    except ValueError:
        return False


def origin_of(settings: WorkerSettings) -> frozenset[URL]:
    """Return the simulator's origin; none if Slack is not simulated."""
    return frozenset() if settings.speaks_to_slack else frozenset({URL(settings.slack_api_url).origin()})


@dataclass(frozen=True, slots=True)
class SlackClients:
    """Two clients for the Web API on one HTTP session, and one for response URLs."""

    client: AsyncWebClient
    """Sends a call again after a connection error, a 5xx answer or a rate limit."""
    once: AsyncWebClient
    """Sends a call again after a rate limit only: for messages that must not be posted twice."""
    responses: ResponseUrls

    def with_token(self, token: str) -> "SlackClients":
        client, once = copy(self.client), copy(self.once)
        client.token = once.token = token
        return SlackClients(client, once, self.responses)


@asynccontextmanager
async def slack_clients(
    settings: WorkerSettings, *, traced: bool, limiter: Limiter | None = None
) -> AsyncIterator[SlackClients]:
    """Open the clients for the length of the block. Their calls wait for the limiter."""
    api = settings.slack_api_url
    traces: list[aiohttp.TraceConfig] = []
    if traced:
        from opentelemetry.instrumentation.aiohttp_client import create_trace_config  # noqa: PLC0415 - slow to import, for traces alone

        traces.append(create_trace_config(url_filter=without_secrets(api)))
    middlewares = [] if limiter is None else [admitting(limiter, URL(api))]
    async with aiohttp.ClientSession(
        trace_configs=traces, timeout=TIMEOUT, middlewares=middlewares
    ) as session:
        limited = RateLimitHandler(max_retry_count=RATE_LIMIT_RETRIES)
        broken = AsyncConnectionErrorRetryHandler(max_retry_count=2)
        failed = AsyncServerErrorRetryHandler(max_retry_count=2)
        token = settings.bot_token
        client = AsyncWebClient(token, api, session=session, retry_handlers=[broken, failed, limited])
        once = AsyncWebClient(token, api, session=session, retry_handlers=[limited])
        responses = ResponseUrls(origin_of(settings), proxy=client.proxy, traces=traces)
        try:
            yield SlackClients(client, once, responses)
        finally:
            await responses.close()


def without_secrets(api: str) -> Callable[[URL], str]:
    """Return a filter for the URLs in spans: it drops queries, and paths outside the API, such as a response URL's."""

    def shown(url: URL) -> str:
        plain = url.with_query(None).with_fragment(None).with_user(None)
        return str(plain) if str(plain).startswith(api) else str(plain.origin())

    return shown


def plain(value: object) -> Any:
    """Return one of slack-sdk's objects, such as a block, as JSON. Anything else stays as it is."""
    return value.to_dict() if isinstance(value, JsonObject) else value


def _plain(value: object) -> object:
    if plain(value) is value:
        raise TypeError(f"a message cannot hold a {type(value).__name__}")
    return plain(value)

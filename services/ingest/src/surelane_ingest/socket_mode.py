"""Hold connections of Slack's Socket Mode: open them, share them with other replicas, replace each before it ends.

The connections have places, numbered from 0. Place 0 is always filled. The others stay empty while the app has all the
connections that Slack allows, so that each replica has at least one. Why slack-sdk's client does not do: ADR 0069.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import aiohttp
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_client import AsyncWebClient

from surelane_ingest.app import Bodies, Drain
from surelane_ingest.envelope import Subscriptions
from surelane_ingest.frames import Disconnect, Hello, read_frame, word
from surelane_ingest.limits import Refusals
from surelane_ingest.links import Links
from surelane_ingest.settings import IngestSettings
from surelane_ingest.socket_link import Link
from surelane_ingest.taking import Taker
from surelane_service.durations import jittered
from surelane_service.logs import get_logger

MOST = 10
"""Connections that Slack allows an app."""
OPENS_WITHIN = 10.0
"""Seconds that a connection may take to open."""
HEARTBEAT = 10.0
"""Seconds without a frame after which a ping asks whether the connection still stands."""
FRAME_EXTRA = 16 * 1024
"""Bytes that Slack may put around the largest payload."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(milliseconds=250), timedelta(seconds=30)
REFUSED_PAUSE = timedelta(seconds=30)
"""Until the next try after Slack refused the token, or the app has too many connections."""
STANDS = 1.0
"""Seconds after which a connection counts as one that works: the next pause is short again."""
REFUSALS = {
    "invalid_auth": "Slack does not know SLACK_APP_TOKEN",
    "not_authed": "Slack does not know SLACK_APP_TOKEN",
    "token_revoked": "SLACK_APP_TOKEN was revoked",
    "account_inactive": "SLACK_APP_TOKEN was revoked",
    "not_allowed_token_type": "SLACK_APP_TOKEN is no app-level token",
    "missing_scope": "SLACK_APP_TOKEN lacks the scope connections:write",
    "forbidden_team": "Slack forbids Socket Mode to this app",
}
FULL = "the app has all its connections"

_logger = get_logger(__name__)


class NotConnectedError(Exception):
    """No connection could be opened. ``pause``: how long to wait; ``None``: as long as after any failure."""

    def __init__(self, reason: str, pause: timedelta | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


class SocketMode:
    """Hold the connections."""

    def __init__(
        self,
        settings: IngestSettings,
        session: aiohttp.ClientSession,
        taker: Taker,
        *,
        bodies: Bodies,
        links: Links,
        refusals: Refusals,
        drain: Drain,
    ) -> None:
        """Prepare to connect.

        Args:
            settings: the token, the number of connections and the event types.
            session: opens the connections.
            taker: stores the events.
            bodies: counts the memory of envelopes.
            links: keeps the state of the connections.
            refusals: logs refused envelopes.
            drain: says when to open no more connections.
        """
        self._token = settings.app_token.get_secret_value().strip() if settings.app_token else ""
        self._session = session
        api = settings.slack_api_url.rstrip("/") + "/"
        # slack-sdk's retries are off: places pause by themselves.
        self._client = AsyncWebClient(None, api, session=session, retry_handlers=[])
        self._taker = taker
        self._subscriptions = Subscriptions(settings.event_types, merge_mentions=settings.merge_mentions)
        self._bodies = bodies
        self._links = links
        self._refusals = refusals
        self._drain = drain
        self._running: dict[Link, asyncio.Task[None]] = {}

    async def hold(self, place: int) -> None:
        """Keep a place filled until cancelled."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while not self._drain.started:
            try:
                link = await self._open(place)
            except NotConnectedError as error:
                self._links.failed(place, str(error))
                wait = error.pause or pause
            except Exception:
                _logger.exception("opening a connection to Slack crashed; it starts again", place=place)
                wait = pause
            else:
                opened = loop.time()
                await link.leaving.wait()
                if loop.time() - opened >= STANDS:
                    pause = FIRST_PAUSE
                    continue
                wait = pause
            await asyncio.sleep(jittered(wait))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def drain(self, timeout: timedelta) -> None:
        """Acknowledge what was taken, and end all connections."""
        until = asyncio.get_running_loop().time() + timeout.total_seconds()
        running = dict(self._running)
        await asyncio.gather(*(link.drain(until) for link in running))
        await asyncio.gather(*running.values(), return_exceptions=True)

    async def _open(self, place: int) -> Link:
        """Open a connection and wait for its ``hello``.

        Raises:
            NotConnectedError: there is none.
        """
        try:
            async with asyncio.timeout(OPENS_WITHIN):
                socket = await self._session.ws_connect(
                    await self._url(),
                    heartbeat=HEARTBEAT,
                    max_msg_size=self._bodies.largest + FRAME_EXTRA,
                )
                try:
                    hello = await self._hello(socket, place)
                except BaseException:
                    await socket.close()
                    raise
        except (aiohttp.ClientError, TimeoutError, OSError, SlackClientError, ValueError) as error:
            raise NotConnectedError(f"Slack does not answer: {type(error).__name__}") from None
        link = Link(
            socket,
            self._taker,
            self._subscriptions,
            bodies=self._bodies,
            links=self._links,
            refusals=self._refusals,
            drain=self._drain,
        )
        self._links.opened(place, hello.connections)
        self._running[link] = asyncio.create_task(self._run(link, place))
        return link

    async def _run(self, link: Link, place: int) -> None:
        try:
            await link.run()
        finally:
            del self._running[link]
            self._links.closed(place, link.reason)

    async def _url(self) -> str:
        try:
            answer = await self._client.apps_connections_open(app_token=self._token)
        except SlackApiError as error:
            raise _refused(error) from None
        url = answer.get("url")
        if not isinstance(url, str) or not url.startswith(("wss://", "ws://")):
            raise NotConnectedError("Slack's answer names no address")
        return url

    async def _hello(self, socket: aiohttp.ClientWebSocketResponse, place: int) -> Hello:
        message = await socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise NotConnectedError("Slack ended the connection at once")
        match read_frame(message.data, self._subscriptions):
            case Hello(connections) if place and connections >= MOST:
                raise NotConnectedError(FULL, REFUSED_PAUSE)
            case Hello() as hello:
                return hello
            case Disconnect("too_many_websockets"):
                raise NotConnectedError(FULL, REFUSED_PAUSE if place else None)
            case Disconnect(reason):
                raise NotConnectedError(f"Slack ended the connection at once: {reason}")
            case _:
                raise NotConnectedError("Slack did not say hello")


def _refused(error: SlackApiError) -> NotConnectedError:
    response = error.response
    code = word(response.get("error")) if hasattr(response, "get") else "unknown"
    if code in ("ratelimited", "rate_limited"):
        after = getattr(response, "headers", {}).get("Retry-After", "")
        seconds = int(after) if after.isascii() and after.isdigit() and len(after) < 5 else 30
        return NotConnectedError("Slack limits the rate of new connections", timedelta(seconds=seconds))
    if code in REFUSALS:
        return NotConnectedError(f"{REFUSALS[code]} ({code})", REFUSED_PAUSE)
    return NotConnectedError(f"Slack refuses: {code}")


@asynccontextmanager
async def socket_mode(
    settings: IngestSettings, taker: Taker, *, bodies: Bodies, links: Links, drain: Drain
) -> AsyncIterator[None]:
    """Hold the connections for the length of the block. At its end, finish what was taken."""
    refusals = Refusals()
    # Proxies come from the environment, as slack-sdk's own do.
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(), trust_env=True) as session:
        held = SocketMode(
            settings, session, taker, bodies=bodies, links=links, refusals=refusals, drain=drain
        )
        places = [asyncio.create_task(held.hold(place)) for place in range(settings.socket_connections)]
        try:
            yield
        finally:
            for place in places:
                place.cancel()
            await asyncio.wait(places)
            await held.drain(settings.drain_timeout)
            refusals.close()

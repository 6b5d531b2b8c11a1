"""Hold connections of Slack's Socket Mode: open them, share them with other replicas, replace each before it ends.

The connections have places, numbered from 0. Place 0 is always filled. The others stay empty while the app has all the
connections that Slack allows, so that each replica has at least one. Why slack-sdk's client does not do: ADR 0069.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import assert_never

import aiohttp
from opentelemetry import metrics
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_client import AsyncWebClient

from surelane.calls import Pool
from surelane_ingest import envelope, frames
from surelane_ingest.app import Bodies, Refusals, RequestRefused
from surelane_ingest.census import Census
from surelane_ingest.ingest_settings import IngestSettings
from surelane_ingest.taking import Taker
from surelane_service.common.durations import jittered
from surelane_service.logs import get_logger
from surelane_service.telemetry.setup import SCHEMA_URL, counted, single

UNREADY_AFTER = 10.0
"""Seconds without a connection after which the service is not ready: longer than a usual reconnect takes."""
LEAVES_WITHIN = 30.0
"""Seconds that a connection lives on after Slack said that it will end. Slack usually ends it earlier."""
CLOSES_WITHIN = 2.0
"""Seconds that the end of a connection may take."""
PATH = "socket mode"
"""Names the connections where logs name a request's path."""
RECOUNTING = -1
"""The place of a connection that is opened for its ``hello`` alone."""
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


def _level(place: int) -> int:
    return logging.DEBUG if place == RECOUNTING else logging.INFO


class SocketLinks:
    """The state of all connections, and how many envelopes had which outcome since the process began.

    ``open``: connections on which Slack can send. ``pending``: envelopes taken and not acknowledged yet. ``others``:
    the app's connections that another client holds.
    """

    def __init__(self) -> None:
        self.open = 0
        self.pending = 0
        self.others = 0
        self.envelopes: Counter[tuple[str, str]] = Counter()
        self._lost_at = float("-inf")
        self._problem = "none is open yet"
        self._reported: dict[int, str] = {}
        meter = metrics.get_meter("surelane_ingest", schema_url=SCHEMA_URL)
        gauge, count = meter.create_observable_gauge, meter.create_observable_counter
        by_type = counted(self.envelopes, "type", "outcome")
        for make, name, observe, unit, description in (
            (gauge, "connections", single(lambda: self.open), "{connection}", "Open connections."),
            (gauge, "unacknowledged", single(lambda: self.pending), "{envelope}", "Not acknowledged yet."),
            (gauge, "others", single(lambda: self.others), "{connection}", "Connections of other clients."),
            (count, "envelopes", by_type, "{envelope}", "Envelopes by type and outcome."),
        ):
            make(f"surelane.ingest.socket.{name}", [observe], unit, description)

    def opened(self, place: int, of_the_app: int) -> None:
        self.open += 1
        self._reported.pop(place, None)
        _logger.log(_level(place), "connected to Slack", place=place, open=self.open, of_the_app=of_the_app)

    def closed(self, place: int, reason: str) -> None:
        self.open -= 1
        if not self.open:
            self._lost_at, self._problem = asyncio.get_running_loop().time(), reason
        _logger.log(_level(place), "a connection to Slack ended", place=place, open=self.open, reason=reason)

    def failed(self, place: int, reason: str) -> None:
        """Note that no connection could be opened. The log names each reason once."""
        if not self.open:
            self._problem = reason
        if self._reported.get(place) != reason:
            self._reported[place] = reason
            _logger.warning("no connection to Slack; trying again", place=place, reason=reason)

    def unready(self) -> str | None:
        """Return why Slack cannot send events here; ``None``: it can, or a connection ended just now."""
        if self.open or asyncio.get_running_loop().time() - self._lost_at < UNREADY_AFTER:
            return None
        return f"there is no Socket Mode connection: {self._problem}"


@dataclass(frozen=True)
class Shared:
    """What all connections use."""

    taker: Taker
    subscriptions: envelope.Subscriptions
    bodies: Bodies
    links: SocketLinks
    refusals: Refusals
    drain: asyncio.Event


@dataclass(eq=False)
class Link:
    """One connection, after its ``hello``. ``leaving``: it will end soon or has ended, so another must replace it."""

    socket: aiohttp.ClientWebSocketResponse
    shared: Shared
    taken: set[asyncio.Task[None]] = field(default_factory=set)
    reason: str = "it broke"
    leaving: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as limit:
                async for message in self.socket:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        if self._frame(message.data):
                            limit.reschedule(loop.time() + LEAVES_WITHIN)
                    elif message.type is aiohttp.WSMsgType.ERROR:
                        break
        except TimeoutError:
            pass
        finally:
            if self.socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
                self.reason = f"an envelope is larger than {self.shared.bodies.largest} bytes"
            self.leaving.set()
            await self._close()

    async def drain(self, within: float) -> None:
        """Acknowledge what was taken, within so many seconds, and end the connection."""
        if self.taken:
            await asyncio.wait(self.taken, timeout=within)
        for task in self.taken:
            task.cancel()
        self.reason = "stopping"
        await self._close()

    async def _close(self) -> None:
        with suppress(TimeoutError, aiohttp.ClientError, OSError):  # the session cuts it
            async with asyncio.timeout(CLOSES_WITHIN):
                await self.socket.close()

    def _frame(self, text: str) -> bool:
        """Take a frame. Return whether Slack says that the connection will end."""
        if self.shared.drain.is_set():
            return False  # Slack sends it again, to another connection
        frame = frames.read_frame(text, self.shared.subscriptions)
        match frame:
            case frames.Delivered():
                self._begin(frame, len(text))
            case frames.Disconnect(reason):
                self.reason = reason
                self.leaving.set()
                return True
            case envelope.Malformed(reason):
                self.shared.links.envelopes["other", "ignored"] += 1
                self.shared.refusals.note(PATH, 400, reason)
            case frames.Hello():
                pass
            case _:
                assert_never(frame)
        return False

    def _begin(self, delivered: frames.Delivered, size: int) -> None:
        if not self.shared.bodies.take(0, size):
            self.shared.links.envelopes[delivered.kind, "unavailable"] += 1
            self.shared.refusals.note(PATH, 503, "too many requests at once")
            self.shared.taker.notes.of(getattr(delivered.content, "payload", None), "full")
            return
        self.shared.links.pending += 1
        task = asyncio.create_task(self._take(delivered))
        self.taken.add(task)

        def done(_: asyncio.Task[None]) -> None:
            self.taken.discard(task)
            self.shared.links.pending -= 1
            self.shared.bodies.free(size)

        task.add_done_callback(done)

    async def _take(self, delivered: frames.Delivered) -> None:
        try:
            outcome = await self._outcome(delivered)
        except Exception:
            _logger.exception("an envelope was not taken", type=delivered.kind)
            outcome = "failed"
        self.shared.links.envelopes[delivered.kind, outcome] += 1

    async def _outcome(self, delivered: frames.Delivered) -> str:
        """Store an envelope's event, and then acknowledge it.

        Without an acknowledgement Slack sends an event again, and tells a person that a command failed.
        """
        answer, outcome = None, "acknowledged"
        arrived = asyncio.get_running_loop().time()
        try:
            answer = await self.shared.taker.take(delivered.content, arrived, delivered.retry)
        except RequestRefused as refused:
            if refused.event:
                _logger.warning("envelope refused", reason=refused.error, **refused.event)
            else:
                self.shared.refusals.note(PATH, refused.status, refused.error)
            if refused.status == 503:
                return "unavailable"
            if refused.status == 404:
                return "unhandled"
            outcome = "refused"  # never storable, so Slack need not try again
        try:
            async with asyncio.timeout(CLOSES_WITHIN):
                await self.socket.send_str(frames.acknowledgement(delivered, answer))
        except (TimeoutError, aiohttp.ClientError, OSError):
            return "lost"
        return outcome


class SocketMode:
    """Hold the connections."""

    def __init__(
        self, settings: IngestSettings, session: aiohttp.ClientSession, shared: Shared, pool: Pool
    ) -> None:
        self._token = settings.app_token.get_secret_value().strip() if settings.app_token else ""
        self._session = session
        # slack-sdk's retries are off: places pause by themselves.
        self._client = AsyncWebClient(None, settings.slack_api_url, session=session, retry_handlers=[])
        self._shared = shared
        self._running: dict[Link, asyncio.Task[None]] = {}
        self.census = Census(pool, self._token)

    async def hold(self, place: int) -> None:
        """Keep a place filled until cancelled."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while not self._shared.drain.is_set():
            try:
                link = await self._open(place)
            except NotConnectedError as error:
                self._shared.links.failed(place, str(error))
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
        running = dict(self._running)
        await asyncio.gather(*(link.drain(timeout.total_seconds()) for link in running))
        await asyncio.gather(*running.values(), return_exceptions=True)

    async def _open(self, place: int) -> Link:
        """Open a connection and wait for its ``hello``. It raises :class:`NotConnectedError`."""
        await self.census.opening()
        try:
            link, of_the_app = await self._opened(place)
        except BaseException:
            self.census.ended()
            raise
        await self._count(of_the_app)
        return link

    async def _opened(self, place: int) -> tuple[Link, int]:
        try:
            async with asyncio.timeout(OPENS_WITHIN):
                socket = await self._session.ws_connect(
                    await self._url(),
                    heartbeat=HEARTBEAT,
                    max_msg_size=self._shared.bodies.largest + FRAME_EXTRA,
                )
                try:
                    hello = await self._hello(socket, place)
                except BaseException:
                    await socket.close()
                    raise
        except (aiohttp.ClientError, TimeoutError, OSError, SlackClientError, ValueError) as error:
            raise NotConnectedError(f"Slack does not answer: {type(error).__name__}") from None
        link = Link(socket, self._shared)
        self._shared.links.opened(place, hello.connections)
        self._running[link] = asyncio.create_task(self._run(link, place))
        return link, hello.connections

    async def recount(self) -> None:
        """Ask Slack from time to time how many connections the app has: for that, one more is opened and ended."""
        while True:
            stale = await self.census.stale()
            self._shared.links.others = self.census.others  # another process may have counted
            if stale:
                with suppress(NotConnectedError):
                    link = await self._open(RECOUNTING)
                    await link.drain(CLOSES_WITHIN)

    async def _count(self, of_the_app: int) -> None:
        await self.census.say(of_the_app)
        self._shared.links.others = self.census.others

    async def _run(self, link: Link, place: int) -> None:
        try:
            await link.run()
        finally:
            del self._running[link]
            self.census.ended()
            self._shared.links.closed(place, link.reason)

    async def _url(self) -> str:
        try:
            answer = await self._client.apps_connections_open(app_token=self._token)
        except SlackApiError as error:
            raise _refused(error) from None
        url = answer.get("url")
        if not isinstance(url, str) or not url.startswith(("wss://", "ws://")):
            raise NotConnectedError("Slack's answer names no address")
        return url

    async def _hello(self, socket: aiohttp.ClientWebSocketResponse, place: int) -> frames.Hello:
        message = await socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise NotConnectedError("Slack ended the connection at once")
        match frames.read_frame(message.data, self._shared.subscriptions):
            case frames.Hello(connections) if place and connections >= MOST:
                await self._count(connections)
                raise NotConnectedError(FULL, REFUSED_PAUSE)
            case frames.Hello() as hello:
                return hello
            case frames.Disconnect("too_many_websockets"):
                await self._count(MOST + 1)  # this one included
                raise NotConnectedError(FULL, REFUSED_PAUSE if place else None)
            case frames.Disconnect(reason):
                raise NotConnectedError(f"Slack ended the connection at once: {reason}")
            case _:
                raise NotConnectedError("Slack did not say hello")


def _refused(error: SlackApiError) -> NotConnectedError:
    response = error.response
    code = frames.word(response.get("error")) if hasattr(response, "get") else "unknown"
    if code in ("ratelimited", "rate_limited"):
        after = getattr(response, "headers", {}).get("Retry-After", "")
        seconds = int(after) if after.isascii() and after.isdigit() and len(after) < 5 else 30
        return NotConnectedError("Slack limits the rate of new connections", timedelta(seconds=seconds))
    if code in REFUSALS:
        return NotConnectedError(f"{REFUSALS[code]} ({code})", REFUSED_PAUSE)
    return NotConnectedError(f"Slack refuses: {code}")


@asynccontextmanager
async def socket_mode(settings: IngestSettings, shared: Shared, pool: Pool) -> AsyncIterator[None]:
    """Hold the connections for the length of the block. At its end, finish what was taken.

    ``pool`` counts them, beside those of other processes.
    """
    # Proxies come from the environment, as slack-sdk's own do.
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(), trust_env=True) as session:
        held = SocketMode(settings, session, shared, pool)
        tasks = [held.recount(), *map(held.hold, range(settings.socket_connections))]
        places = [asyncio.create_task(task) for task in tasks]
        try:
            yield
        finally:
            for place in places:
                place.cancel()
            await asyncio.wait(places)
            await held.drain(settings.drain_timeout)
            await held.census.leave()
            shared.refusals.close()

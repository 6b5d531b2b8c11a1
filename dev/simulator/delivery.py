"""Delivers events as Slack does: signed, three seconds to answer, three retries that say their reason."""

import asyncio
import json
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal
from urllib.parse import urlencode

import aiohttp

from dev.simulator.faults import Faults
from dev.simulator.model import JSON
from dev.simulator.signing import signed_headers

KEPT = 2000
HELD_AT_MOST = timedelta(seconds=5)
USER_AGENT = "Slackbot 1.0 (+https://api.slack.com/robots)"

State = Literal["held", "sending", "retrying", "delivered", "failed"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request and what became of it."""

    at: float
    seconds: float
    retry_num: int
    retry_reason: str | None
    status: int | None
    problem: str | None
    """Why it failed, in the words of ``x-slack-retry-reason``; ``None``: acknowledged."""
    no_retry: bool = False
    body: bytes = field(default=b"", repr=False)


@dataclass(slots=True)
class Delivery:
    """An event on its way to the app."""

    id: str
    kind: str
    channel: str | None
    ts: str | None
    own_message: bool
    """Whether it tells the app of what the app itself said, which it is to pass over."""
    body: bytes = field(repr=False)
    state: State = "sending"
    next_at: float | None = None
    """When the next retry is due."""
    attempts: list[Attempt] = field(default_factory=list)
    job: JSON | None = None
    """What the queue says of the event, where a database is given."""
    answered: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set by the first answer, whatever it is, and when the delivery is given up."""


class Sender:
    """Posts to the app. Every step of a delivery is told to ``changed``."""

    def __init__(
        self,
        *,
        ingest_url: str,
        signing_secret: str,
        timeout: timedelta,
        retry_delays: tuple[timedelta, ...],
        faults: Faults,
        changed: Callable[[Delivery], None] = lambda _: None,
    ) -> None:
        self.ingest_url = ingest_url
        self._secret = signing_secret
        self._retry_delays = retry_delays
        self._faults = faults
        self._changed = changed
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout.total_seconds()))
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: list[asyncio.Future[None]] = []
        self.deliveries: OrderedDict[str, Delivery] = OrderedDict()

    def send(self, envelope: JSON) -> Delivery:
        """Starts the delivery of an event; faults may duplicate it or hold it back."""
        inner = envelope["event"]
        delivery = _delivery(envelope["event_id"], inner, json.dumps(envelope).encode())
        self.deliveries[delivery.id] = delivery
        while len(self.deliveries) > KEPT:
            self.deliveries.popitem(last=False)
        fault = self._faults.take(Faults.DELIVERY)
        self._start(self._deliver(delivery, fault.kind if fault else None))
        return delivery

    def resend(self, delivery: Delivery) -> None:
        """Delivers an event once more, as Slack does when an acknowledgement is lost."""
        self._start(self._repeat(delivery))

    async def post_form(self, path: str, fields: Mapping[str, str]) -> Attempt:
        """Posts a slash command or an interaction; Slack tries these once."""
        return await self._post(path, urlencode(fields).encode(), "application/x-www-form-urlencoded")

    async def close(self) -> None:
        """Gives up whatever is under way; may be called again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, delivery: Delivery, fault: str | None) -> None:
        try:
            if fault == "out_of_order":
                await self._hold(delivery)
            await self._try(delivery)
            if fault == "duplicate" and delivery.state == "delivered":
                await self._repeat(delivery)
        finally:
            delivery.answered.set()

    async def _try(self, delivery: Delivery) -> None:
        for number in range(len(self._retry_delays) + 1):
            if number:
                await self._pause(delivery, self._retry_delays[number - 1])
            settled = await self._attempt(delivery, number)
            self._release_held()
            if settled:
                return

    async def _repeat(self, delivery: Delivery) -> None:
        await self._attempt(delivery, 1, reason="http_timeout")

    async def _attempt(self, delivery: Delivery, number: int, reason: str | None = None) -> bool:
        """Posts the event once; answers whether that settled it."""
        self._move(delivery, "sending")
        if number and reason is None:
            reason = delivery.attempts[-1].problem
        attempt = await self._post("/slack/events", delivery.body, "application/json", number, reason)
        delivery.attempts.append(attempt)
        last = attempt.no_retry or number == len(self._retry_delays)
        self._move(delivery, "delivered" if attempt.problem is None else "failed" if last else "retrying")
        delivery.answered.set()
        return attempt.problem is None or last

    async def _post(
        self, path: str, body: bytes, content_type: str, number: int = 0, reason: str | None = None
    ) -> Attempt:
        headers = {"Content-Type": content_type, "User-Agent": USER_AGENT, "Accept": "*/*"}
        headers |= signed_headers(self._secret, body, int(time.time()))
        if number:
            headers |= {"X-Slack-Retry-Num": str(number), "X-Slack-Retry-Reason": reason or "unknown_error"}
        at, started = time.time(), time.monotonic()
        status, problem, no_retry, answer = None, None, False, b""
        try:
            async with self._session.post(
                self.ingest_url + path, data=body, headers=headers, max_redirects=2
            ) as response:
                status, answer = response.status, await response.read()
                problem = None if response.ok and status < 300 else "http_error"
                no_retry = status != 200 and response.headers.get("X-Slack-No-Retry") == "1"
        except Exception as error:  # noqa: BLE001 - Slack has a word for every failure, "unknown_error" being the last
            problem = _reason(error)
        return Attempt(at, time.monotonic() - started, number, reason, status, problem, no_retry, answer)

    async def _pause(self, delivery: Delivery, delay: timedelta) -> None:
        delivery.next_at = time.time() + delay.total_seconds()
        self._changed(delivery)
        await asyncio.sleep(delay.total_seconds())
        delivery.next_at = None

    async def _hold(self, delivery: Delivery) -> None:
        overtaken = asyncio.get_running_loop().create_future()
        self._held.append(overtaken)
        self._move(delivery, "held")
        await asyncio.wait([overtaken], timeout=HELD_AT_MOST.total_seconds())
        if overtaken in self._held:
            self._held.remove(overtaken)

    def _release_held(self) -> None:
        held, self._held = self._held, []
        for overtaken in held:
            overtaken.set_result(None)

    def _move(self, delivery: Delivery, state: State) -> None:
        delivery.state = state
        self._changed(delivery)


def _delivery(event_id: str, inner: JSON, body: bytes) -> Delivery:
    item = inner.get("item") or inner.get("message") or inner
    kind = ".".join(filter(None, (inner["type"], inner.get("subtype") or inner.get("channel_type"))))
    own = "bot_id" in (inner.get("message") or inner.get("previous_message") or inner)
    return Delivery(event_id, kind, inner.get("channel") or item.get("channel"), item.get("ts"), own, body)


def _reason(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "http_timeout"
        case aiohttp.TooManyRedirects():
            return "too_many_redirects"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return "ssl_error"
        case aiohttp.ClientConnectionError() | OSError():
            return "connection_failed"
    return "unknown_error"

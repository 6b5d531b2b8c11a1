"""Send signed requests with distinct event ids to ingest, as Slack does, paced or as fast as they are answered.

This process shares the cores with the measured service, so it does little: it makes all requests before the clock
starts, and only counts answers.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import uvloop

from benchmarks import figures

SECRET = "benchmark-signing-secret"
TEXT = "<@U0BOT> could you please summarise what was said in this channel since yesterday evening?"


def request(number: int, run: str) -> bytes:
    """Return a request as Slack sends it: an app_mention in a thread of its own, 1.3 kB."""
    now = time.time()
    section = {"type": "rich_text_section", "elements": [{"type": "text", "text": TEXT}]}
    event = {
        "type": "app_mention",
        "user": "U0LAN0Z89",
        "text": TEXT,
        "ts": f"{now + number / 1e6:.6f}",
        "event_ts": f"{now + number / 1e6:.6f}",
        "channel": f"C{run}",
        "team": "T0",
        "client_msg_id": secrets.token_hex(16),
        "blocks": [{"type": "rich_text", "block_id": "b", "elements": [section]}],
    }
    envelope = {
        "token": "x",
        "team_id": "T0",
        "context_team_id": "T0",
        "context_enterprise_id": None,
        "api_app_id": "A0",
        "event": event,
        "type": "event_callback",
        "event_id": f"Ev{run}{number}",
        "event_time": int(now),
        "authorizations": [
            {
                "enterprise_id": None,
                "team_id": "T0",
                "user_id": "U0BOT",
                "is_bot": True,
                "is_enterprise_install": False,
            }
        ],
        "is_ext_shared_channel": False,
        "event_context": "4-eyJldCI6ImFwcF9tZW50aW9uIn0",
    }
    body = json.dumps(envelope).encode()
    timestamp = str(int(now))
    signature = hmac.new(
        SECRET.encode(), b"v0:" + timestamp.encode() + b":" + body, hashlib.sha256
    ).hexdigest()
    head = (
        "POST /slack/events HTTP/1.1\r\nHost: ingest\r\nUser-Agent: Slackbot 1.0 (+https://api.slack.com/robots)\r\n"
        "Accept-Encoding: gzip,deflate\r\nAccept: */*\r\nContent-Type: application/json\r\n"
        f"X-Slack-Request-Timestamp: {timestamp}\r\nX-Slack-Signature: v0={signature}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class Tally:
    """The shared state of a load's connections: the remaining requests, and the results so far."""

    requests: Iterator[bytes]
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)


class Sender(asyncio.Protocol):
    """A connection that sends each request after the answer to the one before, and at its time.

    ``interval`` is the seconds between two requests; 0 sends at once. The first is due after ``delay``. If an answer
    is late, the next request's latency counts from its due time. Otherwise a stalling service would look better.
    """

    def __init__(self, tally: Tally, interval: float, delay: float) -> None:
        self._tally = tally
        self._interval = interval
        self._due = time.perf_counter() + delay
        self._sent = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.done = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport has the same methods
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._tally.latencies.append(time.perf_counter() - self._sent)
        self._tally.statuses[data[9:12].decode()] += 1
        self._due += self._interval
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the service closed the connection"))

    def _wait(self) -> None:
        now = time.perf_counter()
        if self._interval and self._due > now:
            self._loop.call_later(self._due - now, self._send)
        else:
            self._send(self._due if self._interval else now)

    def _send(self, since: float | None = None) -> None:
        assert self._transport is not None
        following = next(self._tally.requests, None)
        if following is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self._sent = since or time.perf_counter()
        self._transport.write(following)


async def _run(port: int, count: int, connections: int, rate: int) -> None:
    run = secrets.token_hex(4)
    tally = Tally(iter([request(number, run) for number in range(count)]))
    interval = connections / rate if rate else 0.0
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    senders = []
    for number in range(connections):
        _, sender = await loop.create_connection(
            partial(Sender, tally, interval, number * interval / connections), "127.0.0.1", port
        )
        senders.append(sender)
    await asyncio.gather(*(sender.done for sender in senders))
    seconds = time.perf_counter() - began
    print(
        json.dumps(
            {
                "rate": count / seconds,
                "p50": figures.percentile(tally.latencies, 0.5),
                "p99": figures.percentile(tally.latencies, 0.99),
                "statuses": tally.statuses,
            }
        )
    )


if __name__ == "__main__":
    uvloop.run(_run(*(int(argument) for argument in sys.argv[1:])))

"""Follow an event through a running system: as processes, under Compose or on a cluster."""

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aiohttp
from slack_sdk.signature import SignatureVerifier
from slack_sdk.web.async_client import AsyncWebClient

from surelane_service.service_settings import DEMO_SIGNING_SECRET

CHANNEL = "C0GENERAL1"
PERSON = "U0ADA00001"
BOT = "U0SURELANE"
DEMO_BOT_TOKEN = "xoxb-surelane-demo"
RETRIED_FOR = 180
"""Seconds for which a mention is sent again, as Slack does for six minutes. A cluster may replace a pod in one."""

Query = Callable[[str], Awaitable[str]]
"""Runs a query on the system's database as its owner, and returns its single value as text."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class System:
    """A running system, seen from outside."""

    ingest: str
    """The URL of ingest's public port."""

    slack: str
    """The URL of the workers' Web API, such as a simulator's ``http://…/api/``."""

    query: Query
    signing_secret: str = DEMO_SIGNING_SECRET
    bot_token: str = DEMO_BOT_TOKEN

    @property
    def web(self) -> AsyncWebClient:
        """Return a client of the Web API."""
        return AsyncWebClient(token=self.bot_token, base_url=self.slack)


@dataclass(frozen=True)
class Mention:
    """A mention of the bot in a thread of its own. A retry has the same body, as Slack's have."""

    event_id: str
    thread_ts: str
    text: str
    body: bytes


async def answered_once(system: System) -> None:
    """Send a signed mention by HTTP. Wait until its row is in history and its one reply in the thread."""
    mention = await new_mention(system)
    assert await send(system, mention) == 200
    await eventually(lambda: outcomes(system, [mention]), {mention.event_id: "completed"}, within=60)
    assert len(await replies(system, mention)) == 1


async def new_mention(system: System) -> Mention:
    """Open a thread, and make a mention in it."""
    opened = await system.web.chat_postMessage(channel=CHANNEL, text="a thread")
    event_id, thread_ts = f"Ev{secrets.token_hex(6).upper()}", str(opened["ts"])
    text, ts = f"hello {secrets.token_hex(4)}", f"{time.time():.6f}"
    event = {
        "type": "app_mention",
        "channel": CHANNEL,
        "user": PERSON,
        "text": f"<@{BOT}> {text}",
        "ts": ts,
        "thread_ts": thread_ts,
        "event_ts": ts,
    }
    envelope = {
        "type": "event_callback",
        "team_id": "T0SURELANE",
        "api_app_id": "A0SURELANE",
        "event_id": event_id,
        "event_time": int(time.time()),
        "event": event,
        "authorizations": [{"team_id": "T0SURELANE", "user_id": BOT, "is_bot": True}],
    }
    return Mention(event_id, thread_ts, text, json.dumps(envelope).encode())


async def send(system: System, mention: Mention, *, retry: int | None = None) -> int:
    """Post a mention as Slack does, or its ``retry``; return the status."""
    timestamp, verifier = str(int(time.time())), SignatureVerifier(system.signing_secret)
    signature = verifier.generate_signature(timestamp=timestamp, body=mention.body)
    headers = {
        "Content-Type": "application/json",
        "X-Slack-Request-Timestamp": timestamp,
        "X-Slack-Signature": str(signature),
        **({} if retry is None else {"X-Slack-Retry-Num": str(retry)}),
    }
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session,
        session.post(f"{system.ingest}/slack/events", data=mention.body, headers=headers) as response,
    ):
        return response.status


async def replies(system: System, mention: Mention) -> list[str]:
    """Return the texts of the bot's replies to a mention."""
    thread = await system.web.conversations_replies(channel=CHANNEL, ts=mention.thread_ts)
    messages = thread["messages"][1:]
    return [message["text"] for message in messages if mention.text in message["text"]]


async def outcomes(system: System, mentions: list[Mention]) -> dict[str, str]:
    """Return the outcomes of the mentions in history, by event id."""
    wanted = ", ".join(f"'{mention.event_id}'" for mention in mentions)
    found = await system.query(
        "select coalesce(jsonb_object_agg(item_key, outcome), '{}') from agent.event_hist"
        f" where item_key in ({wanted})"
    )
    ended: dict[str, str] = json.loads(found)
    return ended


async def history_is_hypertable(system: System) -> bool:
    """Return whether history is a hypertable of TimescaleDB's."""
    found = await system.query(
        "select count(*) from timescaledb_information.hypertables"
        " where hypertable_schema = 'agent' and hypertable_name = 'event_hist'"
    )
    return found == "1"


async def eventually(
    probe: Callable[[], Awaitable[Value]], expected: Value, *, within: float, every: float = 0.2
) -> None:
    """Ask until the answer is the expected one.

    Raises:
        AssertionError: the time is up; the message has the last answer.
    """
    deadline = time.monotonic() + within
    while (answer := await probe()) != expected:
        assert time.monotonic() < deadline, f"after {within} s: {answer!r}, not {expected!r}"
        await asyncio.sleep(every)


async def accepted_during(system: Callable[[], System], disturb: Awaitable[None]) -> list[Mention]:
    """Send a few mentions per second while something happens; return those that were answered 200.

    Send a mention without a 200 again, as Slack does.

    Args:
        system: called before every mention, because its address may change.
        disturb: what happens meanwhile.
    """
    accepted: list[Mention] = []

    async def sending() -> None:
        while True:
            mention = await new_mention(system())
            await eventually(lambda: _accepts(system(), mention), True, within=RETRIED_FOR)  # noqa: B023 - awaited here
            accepted.append(mention)
            await asyncio.sleep(0.2)  # the rate of the mentions

    async with asyncio.TaskGroup() as group:
        sender = group.create_task(sending())
        await disturb
        sender.cancel()
    return accepted


async def _accepts(system: System, mention: Mention) -> bool:
    try:
        return await send(system, mention) == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def all_answered_once(system: System, mentions: list[Mention], *, within: float = 120) -> None:
    """Wait until every mention is in history as completed. Check that each got one reply."""
    expected = {mention.event_id: "completed" for mention in mentions}
    await eventually(lambda: outcomes(system, mentions), expected, within=within)
    for mention in mentions:
        assert len(await replies(system, mention)) == 1, mention.event_id

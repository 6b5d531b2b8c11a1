"""Random requests, signed and not, to a real service with a real database: each is answered, none is a 500."""

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Iterable
from itertools import count, takewhile
from typing import Any

import aiohttp
import pytest

from tests.databases import as_role
from tests.processes import Service, service
from tests.system.ingest_client import Slack, envelope, mention, settings
from tests.system.raw_http import post, raw, statuses, still_serves

ANSWERS = {200, 400, 401, 404, 405, 408, 413, 415, 503}


@pytest.fixture
async def ingest(database: str) -> AsyncIterator[Service]:
    async with service("surelane_ingest", settings(as_role(database, "surelane_ingest"))) as running:
        yield running


@pytest.fixture
async def slack(ingest: Service) -> AsyncIterator[Slack]:
    async with aiohttp.ClientSession() as session:
        yield Slack(session, ingest.url)


async def test_fuzzed_requests_are_answered_and_survived(ingest: Service, slack: Slack) -> None:
    await _fuzz(ingest, slack, range(10), seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1000)
async def test_fuzzed_requests_are_answered_and_survived_for_long(ingest: Service, slack: Slack) -> None:
    end = time.monotonic() + float(os.environ.get("SURELANE_SOAK_SECONDS", "300"))
    rounds = takewhile(lambda _: time.monotonic() < end, count())
    await _fuzz(ingest, slack, rounds, seed=random.randrange(2**32))


async def _fuzz(ingest: Service, slack: Slack, rounds: Iterable[int], *, seed: int) -> None:
    print(f"seed {seed}")  # noqa: T201 - to run a failure again
    chance = random.Random(seed)
    for _ in rounds:
        results = await asyncio.gather(*(_fuzz_once(ingest, slack, chance) for _ in range(16)))
        assert set(results) <= ANSWERS, results
    await still_serves(ingest.url)
    assert not any("Traceback" in line or "does not take events" in line for line in ingest.output)


async def _fuzz_once(ingest: Service, slack: Slack, chance: random.Random) -> int:
    body = _mutated(json.dumps(_fuzzed_envelope(chance)).encode(), chance)
    if chance.random() < 0.1:
        request = _mutated(post(body) + b"Content-Length: %d\r\n\r\n" % len(body) + body, chance)
        return max(statuses(await raw(ingest.port, request)), default=400)
    if chance.random() < 0.2:
        path = chance.choice(["/slack/commands", "/slack/interactions"])
        form = chance.choice([b"payload=", b"command=", b"trigger_id=1&command=%2Fx&text="]) + body
        return (await slack.post(path, form, "application/x-www-form-urlencoded")).status
    return (await slack.post("/slack/events", body)).status


def _fuzzed_envelope(chance: random.Random) -> dict[str, Any]:
    payload = mention()
    target = chance.choice([payload, payload["event"], payload["authorizations"][0]])
    field = chance.choice([*target, "channel_type", "subtype", "thread_ts", "bot_id", "x"])
    target[field] = _fuzzed_value(chance)
    return payload if chance.random() < 0.9 else envelope(_fuzzed_value(chance))


SCALARS: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**30, 1e308, [], {}),
    *("", "\x00", "\ud800", "é" * 300, "x" * 5000, "1.2", "im"),
)
PIECES = (b"", b"\x00", b"\xff", b"\\u0000", b"\\ud83d", b"1e999999", b'"', b"{", b"]", b",", b"\r\n", b"NaN")


def _fuzzed_value(chance: random.Random, depth: int = 3) -> Any:
    if depth and chance.random() < 0.4:
        inner = [_fuzzed_value(chance, depth - 1) for _ in range(chance.randrange(4))]
        return inner if chance.random() < 0.5 else {str(item)[:20]: item for item in inner}
    return chance.choice(SCALARS)


def _mutated(data: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        return data
    mutated = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(mutated) + 1)
        mutated[at : at + chance.randrange(4)] = chance.choice(PIECES)
    return bytes(mutated)

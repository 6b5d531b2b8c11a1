"""Bodies of clients without the secret shut no other client out, and a signed body costs no more than its size."""

import json
import time
from contextlib import AsyncExitStack, suppress

import pytest
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st

from surelane.calls import Connection
from surelane_ingest.app import SMALL, Bodies
from surelane_ingest.envelope import Subscriptions, Take, read_event
from surelane_ingest.json_text import NotJsonError, read_json
from tests.processes import until
from tests.system.ingest_client import Served, mention, own_ingest, signed
from tests.system.raw_http import connected, raw, statuses

MiB = 1024 * 1024
AHEAD = "400 seconds ahead of the clock"
TYPES = Subscriptions(frozenset({"app_mention"}))


system, ingest, connection = own_ingest()


def head(length: int, path: str = "/slack/events", **headers: str) -> bytes:
    """Return the head of a request that announces ``length`` bytes."""
    own = {"Host": "x", "Content-Type": "application/json", "Content-Length": str(length)}
    sent = {**own, **signed(b"guessed"), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode()


async def test_announcing_bodies_takes_no_room(ingest: Served) -> None:
    """200 heads announce 200 MiB, more than the 64 MiB for bodies."""
    async with AsyncExitStack() as stack:
        for _ in range(200):
            _, writer = await stack.enter_async_context(connected(ingest.ingest.port))
            writer.write(head(MiB) + b"{")
        await until(lambda: ingest.ingest.bodies.held_bytes >= 200, what="200 bodies being read")
        assert ingest.ingest.bodies.held_bytes == 200
        assert (await ingest.slack.event(mention())).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Slack-Signature": ""},
        {"X-Slack-Signature": "v0=" + "g" * 64},
        {"X-Slack-Signature": "v1=" + "0" * 64},
        {"X-Slack-Signature": "v0=" + "0" * 63},
        *({"X-Slack-Request-Timestamp": each} for each in ("", "1", AHEAD, "9" * 3000, "-1")),
        {"path": "/v1/triggers/git"},
        {"path": "/v1/dispatch/1"},
    ],
)
async def test_what_cannot_be_signed_is_refused_unread(ingest: Served, headers: dict[str, str]) -> None:
    # Compute it here and not in the parameters: a run may reach this test minutes after its collection.
    ahead = {name: str(int(time.time()) + 400) for name, value in headers.items() if value == AHEAD}
    assert statuses(await raw(ingest.ingest.port, head(MiB, **{**headers, **ahead}), answers=1)) == [401]


def test_large_bodies_leave_room_for_small_ones() -> None:
    bodies = Bodies(MiB, 4 * MiB)
    large = 0
    while bodies.take(0, MiB):
        large += 1
    assert large == 3
    small = 0
    while bodies.take(0, SMALL):
        small += 1
    assert small == MiB // SMALL
    for _ in range(large):
        bodies.free(MiB)
    for _ in range(small):
        bodies.free(SMALL)
    assert bodies.held_bytes == 0
    assert bodies.take(0, SMALL)
    assert bodies.take(SMALL, MiB)
    assert bodies.take(0, MiB)


WORST = {
    "backslashes": '"' + "\\\\" * 120_000 + '\\ud800"',
    "quotes and escapes": '"' + '\\"\\u0000' * 32_000 + '"',
    "halves": '"' + "\\ud83d" * 43_000 + '"',
    "pairs and a half": '"' + "\\ud83d\\ude00" * 21_000 + '\\ud83d"',
    "unterminated": '"\\u0000' + '"a' * 120_000,
    "half then text": '"\\ud800' + "\\ud8" * 50_000 + '"',
    "digits": "[" + "1" * 4000 + ("," + "1" * 4000) * 60 + "]",
    "dots": '"\\u0000" ' + "1." * 100_000,
    "exponents": "[" + "1e0," * 60_000 + "1]",
    "a number, then a string without end": '[1e9999,"' + '\\"' * 32_000,
    "brackets": "[" + "[]," * 80_000 + "[]]",
}


@pytest.mark.parametrize("case", WORST)
def test_reading_takes_time_in_proportion_to_the_text(case: str) -> None:
    """The time is in seconds of CPU. A text of 64 KB once took thirteen."""
    began = time.process_time()
    with suppress(NotJsonError):
        read_json(WORST[case])
    assert time.process_time() - began < 2


async def test_an_event_is_not_stored_much_larger(ingest: Served, connection: Connection) -> None:
    """The body has the largest exponents that are allowed."""
    numbers = "[" + "1e308," * 200 + "5e-324]"
    event = json.dumps(mention(odd="N")).replace('"N"', numbers)
    assert (await ingest.slack.post("/slack/events", event.encode())).status == 200
    (stored,) = await connection.fetch("select event::text from agent.event where event -> 'event' ? 'odd'")
    assert len(stored["event"]) < len(event) + 70_000


# Lone surrogates, also after escaped backslashes. None may reach a kind, a key, a metric or the database.
HALVES = [
    *(r"\\ud83d\udc00", r"\\\ud800", r"\ud800", r"\\\\\udc00x", r"\udc00\ud800"),
    *(r"\ud83d\\ude00", r"\ud83d\u0000\ude00"),
]


@pytest.mark.parametrize("half", HALVES)
async def test_half_a_surrogate_pair_harms_nothing(ingest: Served, half: str) -> None:
    event = json.dumps(mention(text="T")).replace('"T"', f'"{half}"')
    key = json.dumps(mention("KEY")).replace("KEY", half)
    shadowed = json.dumps(mention()).replace('"api_app_id"', f'"event_id": "{half}", "api_app_id"')
    kind = json.dumps({"type": "KIND", "trigger_id": "T"}).replace("KIND", half)
    trigger = json.dumps({"type": "block_actions", "trigger_id": "T"}).replace('"T"', f'"{half}"')
    answers = [
        *[await ingest.slack.post("/slack/events", body.encode()) for body in (event, key, shadowed)],
        *[await ingest.slack.form("/slack/interactions", {"payload": body}) for body in (kind, trigger)],
    ]
    assert [answer.status for answer in answers] == [200] * 5
    async with ClientSession() as session, session.get(ingest.private_url + "/metrics") as metrics:
        assert metrics.status == 200


@given(
    st.lists(st.sampled_from(["\\ud83d", "\\ude00", "\\\\", "\\u0000", "\\n", "u", "d83d", '\\"', "\\uD800"]))
)
def test_whatever_is_escaped_can_be_encoded(parts: list[str]) -> None:
    text = "".join(parts)
    body = json.dumps(mention("KEY", text="TEXT")).replace("KEY", text).replace("TEXT", text).encode()
    taken = read_event(body, TYPES)
    assert isinstance(taken, Take)
    for said in (taken.key or "", taken.kind, taken.body, json.loads(taken.body)["event"]["text"]):
        said.encode()

"""The public port refuses hostile requests: no 500, no stack trace, no secret in a log."""

import asyncio
import gzip
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import psutil  # type: ignore[import-untyped]
import pytest

from surelane.calls import Connection
from tests.databases import as_role
from tests.processes import service
from tests.system.ingest_client import SECRET, Served, Slack, mention, own_ingest, settings
from tests.system.raw_http import post, raw, statuses, still_serves

MARK = "MARKED-PRIVATE-TEXT"


system, local, connection = own_ingest()

REST_OF_A_SIGNED_REQUEST = {
    "length, chunked": b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 20\r\n\r\n{}",
    "signed length": b"Content-Length: +2\r\n\r\n{}",
    "hexadecimal length": b"Content-Length: 0x2\r\n\r\n{}",
    "space before colon": b"Content-Length : 2\r\n\r\n{}",
    "odd encoding": b"Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "odd chunk": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "huge chunk": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}",
    "folded header": b"X: a\r\n\tfolded\r\nContent-Length: 2\r\n\r\n{}",
    "upgrade": b"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\n{}",
}
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**30, 1e308, [], {}, [None, [{}]], {"x": [1]}),
    *("", "\x00", "\ud800", "é" * 300, "x" * 5000, "1.2", "im"),
)
NO_REQUEST = {
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "absolute": b"GET http://elsewhere/slack/events HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("case", [*REST_OF_A_SIGNED_REQUEST, *NO_REQUEST])
async def test_garbled_http_is_refused(local: Served, connection: Connection, case: str) -> None:
    request = NO_REQUEST.get(case) or post(b"{}") + REST_OF_A_SIGNED_REQUEST[case]
    answer = await raw(local.ingest.port, request)
    assert all(400 <= status < 500 for status in statuses(answer)), answer
    assert len(statuses(answer)) <= 1
    assert b"Traceback" not in answer
    assert await connection.fetchval("select count(*) from agent.event") == 0
    await still_serves(local.url)


async def test_a_body_longer_than_announced_is_not_a_second_request(
    local: Served, connection: Connection
) -> None:
    smuggled = json.dumps(mention()).encode()
    inner = post(smuggled) + b"Content-Length: %d\r\n\r\n" % len(smuggled) + smuggled
    whole = post(b"{}") + b"Content-Length: %d\r\n\r\n{}" % (2 + len(inner)) + inner
    answer = await raw(local.ingest.port, whole, answers=1)
    assert statuses(answer) == [401]  # one request, whose body differs from the signed one
    assert await connection.fetchval("select count(*) from agent.event") == 0


async def test_requests_behind_one_another_are_each_verified(local: Served, connection: Connection) -> None:
    body = json.dumps(mention()).encode()
    good = post(body) + b"Content-Length: %d\r\n\r\n" % len(body) + body
    forged = good.replace(b"v0=", b"v0=0")
    # After a refusal the connection ends, and later requests on it are not read.
    assert statuses(await raw(local.ingest.port, good + good + forged + good, answers=3)) == [200, 200, 401]
    assert await connection.fetchval("select count(*) from agent.event") == 1


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
async def test_an_odd_value_anywhere_is_stored_or_refused(local: Served, value: Any) -> None:
    def payloads() -> Iterator[dict[str, Any]]:
        made = mention()
        for name in made:
            yield mention() | {name: value}
        for name in (*made["event"], "channel_type", "subtype", "thread_ts", "bot_id", "x"):
            yield mention(**{name: value})
        for name in made["authorizations"][0]:
            yield mention() | {"authorizations": [made["authorizations"][0] | {name: value}]}

    answers = await asyncio.gather(*map(local.slack.event, payloads()))
    assert {answer.status for answer in answers} <= {200, 400}
    await still_serves(local.url)


async def test_nothing_private_is_logged_or_traced_and_a_compression_bomb_is_never_inflated(
    shared_database: str,
) -> None:
    good, url = mention(text=MARK), f"https://hooks.slack.com/{MARK}"
    command = {"command": "/x", "text": MARK, "trigger_id": MARK, "response_url": url}
    click = json.dumps({"type": "block_actions", "trigger_id": MARK})
    env = settings(as_role(shared_database, "surelane_ingest"), OTEL_TRACES_EXPORTER="console")
    bomb = gzip.compress(b"[" * 10_000_000) * 20
    async with service("surelane_ingest", env) as ingest, aiohttp.ClientSession() as session:
        slack = Slack(session, ingest.url)
        assert (await slack.post(f"/slack/events?code={MARK}", json.dumps(good).encode())).status == 200
        await slack.event(mention(text=MARK + "\x00"))
        await slack.event(mention(text=MARK), **{"X-Slack-Signature": "v0=" + "f" * 64})
        await slack.post("/slack/events", MARK.encode())
        await slack.event({**good, "event": MARK})
        await slack.send("POST", f"/{MARK}?code={MARK}", b"{}", {"Content-Type": "application/json"})
        for form in (command, {"text": MARK}):
            await slack.form("/slack/commands", form)
        for payload in (click, MARK):
            await slack.form("/slack/interactions", {"payload": payload})
        await slack.event({"type": "url_verification", "challenge": MARK})
        await raw(ingest.port, post(b"{}") + f"X-Bad\x00: {MARK}\r\n\r\n".encode(), answers=1)
        await raw(
            ingest.port, post(b"{}") + f"Transfer-Encoding: chunked\r\n\r\n{MARK}\r\n".encode(), answers=1
        )
        await raw(ingest.port, f"{MARK} / HTTP/1.1\r\n\r\n".encode(), answers=1)
        before = psutil.Process(ingest.process.pid).memory_info().rss
        packed = (slack.post("/slack/events", bomb, **{"Content-Encoding": "gzip"}) for _ in range(20))
        assert {answer.status for answer in await asyncio.gather(*packed)} == {415}
        assert psutil.Process(ingest.process.pid).memory_info().rss - before < 50_000_000, "it was inflated"
        ingest.process.terminate()
        assert await ingest.child.wait() == 0
    output = "\n".join(ingest.output)
    assert good["event_id"] in output
    assert "garbled HTTP" in output
    shown = output.replace(
        f'"url.path": "/{MARK}"', ""
    )  # traces have a request's path, and logs have ours alone
    for private in (MARK, SECRET, "verification-token", "Traceback", "f" * 64):
        assert private not in shown
    assert '"name": "POST /slack/commands"' in output

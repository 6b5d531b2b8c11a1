"""Each of Slack's requests gets the answer that makes Slack do the right thing next."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import asyncpg
import pytest

from surelane.calls import Connection
from tests.databases import as_role
from tests.system.ingest_client import (
    APP,
    Answer,
    Served,
    Slack,
    envelope,
    mention,
    own_ingest,
    served,
    signed,
)

JSON = {"Content-Type": "application/json"}


system, ingest, connection = own_ingest()


@pytest.fixture
def slack(ingest: Served) -> Slack:
    return ingest.slack


async def rows(connection: Connection) -> list[Any]:
    return await connection.fetch("select * from agent.event order by id")


def refused(answer: Answer, status: int) -> bool:
    """Return whether the answer has the status and a short JSON body, and allows Slack's retries."""
    short = "error" in json.loads(answer.body) and len(answer.body) < 200
    return answer.status == status and short and not answer.no_retry


async def readiness(running: Served) -> int:
    async with running.slack.session.get(running.private_url + "/readyz") as response:
        return response.status


async def test_a_retry_is_acknowledged_and_stored_once(ingest: Served, connection: Connection) -> None:
    payload, before = mention(), ingest.ingest.writer.metrics.duplicates
    answers = await asyncio.gather(*(ingest.slack.event(payload) for _ in range(50)))
    assert {answer.status for answer in answers} == {200}
    assert len(await rows(connection)) == 1
    assert ingest.ingest.writer.metrics.duplicates == before + 49
    retry = {"x-slack-retry-num": "1", "x-slack-retry-reason": "http_timeout"}
    identity = await connection.fetchval("select id from agent.claim_event()")
    assert (await ingest.slack.event(payload, **retry)).status == 200
    await connection.execute("select agent.delete_event($1)", identity)
    assert (await ingest.slack.event(payload, **retry)).status == 200
    assert await rows(connection) == []
    assert await connection.fetchval("select count(*) from agent.event_hist") == 1


async def test_what_is_no_event_for_the_bot_is_acknowledged_and_not_stored_and_the_url_is_verified(
    slack: Slack, connection: Connection
) -> None:
    limited = {"type": "app_rate_limited", "team_id": "T1", "minute_rate_limited": 1518467820}
    for payload in (mention(bot_id="B1"), envelope({"type": "reaction_added", "user": "U1"}), limited):
        assert (await slack.event(payload)).status == 200
    assert (await slack.form("/slack/commands", {"ssl_check": "1", "token": "t"})).status == 200
    assert await rows(connection) == []
    answer = await slack.event({"type": "url_verification", "token": "t", "challenge": "3eZbrw1a"})
    assert (answer.status, json.loads(answer.body)) == (200, {"challenge": "3eZbrw1a"})


@pytest.mark.parametrize(
    ("commands", "interactions"),
    [("/slack/commands", "/slack/interactions"), ("/slack/events", "/slack/events")],
)
async def test_commands_and_interactions_are_stored_once_and_answered_with_nothing(
    slack: Slack, connection: Connection, commands: str, interactions: str
) -> None:
    command = {
        "command": "/deploy",
        "text": "api",
        "trigger_id": "1.2.a",
        "team_id": "T1",
        "channel_id": "C1",
    }
    payload = {"type": "view_submission", "trigger_id": "1.2.b", "team": {"id": "T1"}, "view": {"id": "V1"}}
    for _ in range(2):
        first = await slack.form(commands, command)
        second = await slack.form(interactions, {"payload": json.dumps(payload)})
        assert [(answer.status, answer.body) for answer in (first, second)] == [(200, b"")] * 2
    stored = await rows(connection)
    assert [row["kind"] for row in stored] == ["slack.command.deploy", "slack.view_submission"]
    assert [json.loads(row["event"]) for row in stored] == [command, payload]
    assert all(row["item_key"].startswith("trigger:") for row in stored)


async def test_what_slack_did_not_sign_is_refused_and_may_be_retried(
    slack: Slack, connection: Connection
) -> None:
    for headers in ({}, signed(b"{} ")):
        assert refused(await slack.send("POST", "/slack/events", b"{}", {**JSON, **headers}), 401)
    assert await rows(connection) == []


async def test_signed_nonsense_is_refused_for_good(slack: Slack, connection: Connection) -> None:
    event = json.dumps(mention(odd="N"))
    answers = [await slack.post("/slack/events", event.encode(), "application/x-www-form-urlencoded")]
    answers += [await slack.post("/slack/events", body) for body in (b"", b"[", b'{"type": "nonsense"}')]
    answers.append(await slack.post("/slack/events", event.replace('"N"', "1e999").encode()))
    assert [(answer.status, answer.no_retry) for answer in answers] == [(400, True)] * 5
    assert b"a number is" in answers[-1].body
    assert await rows(connection) == []


async def test_the_largest_body_is_stored_and_larger_ones_are_refused_announced_or_not(
    slack: Slack, connection: Connection
) -> None:
    body = json.dumps(mention(text="x" * 2**20)).encode()
    assert refused(await slack.post("/slack/events", body), 413)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    async with slack.session.post(
        slack.url + "/slack/events", data=chunks(), headers={**JSON, **signed(body)}
    ) as response:
        assert refused(Answer(response, await response.read()), 413)
    payload = mention(text="")
    payload["event"]["text"] = "é" * ((2**20 - len(json.dumps(payload))) // 6)
    assert (await slack.event(payload)).status == 200
    assert json.loads((await rows(connection))[0]["event"]) == payload


async def test_other_content_types_and_compressed_bodies_are_refused(
    slack: Slack, connection: Connection
) -> None:
    body = json.dumps(mention()).encode()
    for content_type in ("text/plain", "multipart/form-data; boundary=x", ""):
        assert refused(await slack.post("/slack/events", body, content_type), 415)
    assert refused(await slack.post("/slack/commands", b"command=/x", "application/json"), 415)
    for packed, encoding in ((gzip.compress(body), "gzip"), (body, "br")):
        assert refused(await slack.post("/slack/events", packed, **{"Content-Encoding": encoding}), 415)
    assert (await slack.post("/slack/events", body, "application/json; charset=utf-8")).status == 200
    assert len(await rows(connection)) == 1


async def test_other_paths_and_methods_are_refused(slack: Slack) -> None:
    for path in ("/", "/slack/events/", "/slack/Events", "/livez", "/v1/jobs", "/%00", "/slack/../slack/x"):
        assert refused(await slack.send("POST", path, b"{}", JSON), 404), path
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = await slack.send(method, "/slack/events", b"", {})
        assert refused(answer, 405), method
        assert answer.headers["Allow"] == "POST"


async def test_a_body_that_trickles_in_is_given_up(
    ingest: Served, slack: Slack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest.ingest.bodies, "read_within", 0.2)
    body = b'{"type": "event_callback"}'

    async def trickle() -> AsyncIterator[bytes]:
        yield body[:5]
        await asyncio.Event().wait()  # until the answer is here

    headers = {**JSON, **signed(body), "Content-Length": str(len(body))}
    async with slack.session.post(slack.url + "/slack/events", data=trickle(), headers=headers) as response:
        assert refused(Answer(response, await response.read()), 408)


async def test_a_service_may_take_the_apps_own_messages_and_says_when_it_takes_none(
    database: str,
) -> None:
    async with (
        served(as_role(database, "surelane_ingest"), own_events=True) as running,
        aiohttp.ClientSession() as session,
        asyncpg.create_pool(database, min_size=0) as owner,
    ):
        for path, status in (("/livez", 200), ("/readyz", 200), ("/nothing", 404)):
            async with session.get(running.private_url + path) as response:
                assert response.status == status
        own = mention(bot_id="B1", app_id=APP, metadata={"event_type": "task"})
        assert (await running.slack.event(own)).status == 200
        assert json.loads(await owner.fetchval("select event from agent.event")) == own
        for fits, ready in (("0.1.0", 200), ("9.0.0", 503), ("0.1.0", 200)):
            await owner.execute("update agent.version set version = '9.0.0', min_compatible = $1", fits)
            assert await readiness(running) == ready
        running.ingest.drain.set()
        assert await readiness(running) == 503
        answer = await running.slack.event(mention())
        assert refused(answer, 503)
        assert answer.headers["Retry-After"]


async def test_an_empty_database_is_an_error_that_slack_retries(empty_database: str) -> None:
    async with served(empty_database) as running:
        assert refused(await running.slack.event(mention()), 503)
        assert await readiness(running) == 503

"""Each of Slack's requests gets the answer that makes Slack do the right thing next."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from surelane.calls import Connection
from tests.databases import as_role
from tests.system.ingest_client import (
    SECRET,
    Answer,
    Served,
    Slack,
    envelope,
    event_id,
    mention,
    served,
    signed,
)

JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def service(database: str) -> AsyncIterator[Served]:
    async with served(as_role(database, "surelane_ingest")) as running:
        yield running


@pytest.fixture
def slack(service: Served) -> Slack:
    return service.slack


async def rows(connection: Connection) -> list[Any]:
    return await connection.fetch("select *, event ->> 'event_id' as event_id from agent.event order by id")


def refused(answer: Answer, status: int) -> bool:
    """Return whether the answer has the status and a short JSON body, and allows Slack's retries."""
    return (
        answer.status == status
        and "error" in json.loads(answer.body)
        and not answer.no_retry
        and len(answer.body) < 200
    )


async def test_a_retry_is_acknowledged_and_stored_once(slack: Slack, connection: Connection) -> None:
    payload = mention()
    for headers in (
        {},
        {"x-slack-retry-num": "1", "x-slack-retry-reason": "http_timeout"},
        {"x-slack-retry-num": "3"},
    ):
        assert (await slack.event(payload, **headers)).status == 200
    assert len(await rows(connection)) == 1


async def test_a_retry_of_a_running_and_of_a_finished_event_is_acknowledged_and_not_stored(
    slack: Slack, connection: Connection
) -> None:
    payload = mention()
    assert (await slack.event(payload)).status == 200
    identity = await connection.fetchval("select id from agent.claim_event()")
    assert (await slack.event(payload)).status == 200
    await connection.execute("select agent.delete_event($1)", identity)
    assert (await slack.event(payload)).status == 200
    assert await rows(connection) == []
    assert await connection.fetchval("select count(*) from agent.event_hist") == 1


async def test_identical_requests_at_once_are_one_event(
    service: Served, slack: Slack, connection: Connection
) -> None:
    payload = mention()
    answers = await asyncio.gather(*(slack.event(payload) for _ in range(50)))
    assert {answer.status for answer in answers} == {200}
    assert len(await rows(connection)) == 1
    assert service.ingest.writer.metrics.duplicates == 49


async def test_what_is_not_for_the_bot_is_acknowledged_and_not_stored(
    slack: Slack, connection: Connection
) -> None:
    assert (await slack.event(mention(bot_id="B1"))).status == 200
    assert (await slack.event(mention(user="UBOT"))).status == 200
    assert (await slack.event(envelope({"type": "reaction_added", "user": "U1"}))).status == 200
    limited = {
        "type": "app_rate_limited",
        "team_id": "T1",
        "minute_rate_limited": 1518467820,
        "api_app_id": "A1",
    }
    assert (await slack.event(limited)).status == 200
    assert await rows(connection) == []


async def test_the_url_is_verified(slack: Slack) -> None:
    answer = await slack.event({"type": "url_verification", "token": "t", "challenge": "3eZbrw1a"})
    assert answer.status == 200
    assert json.loads(answer.body) == {"challenge": "3eZbrw1a"}


async def test_a_url_verification_that_is_not_signed_is_refused(slack: Slack) -> None:
    body = json.dumps({"type": "url_verification", "challenge": "x"}).encode()
    assert refused(await slack.send("POST", "/slack/events", body, JSON), 401)


@pytest.mark.parametrize(
    ("commands", "interactions"),
    [("/slack/commands", "/slack/interactions"), ("/slack/events", "/slack/events")],
)
async def test_commands_and_interactions_are_stored_and_answered_with_nothing(
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
    first = await slack.form(commands, command)
    second = await slack.form(interactions, {"payload": json.dumps(payload)})
    assert [(answer.status, answer.body) for answer in (first, second)] == [(200, b"")] * 2
    stored = await rows(connection)
    assert [row["kind"] for row in stored] == ["slack.command.deploy", "slack.view_submission"]
    assert [json.loads(row["event"]) for row in stored] == [command, payload]
    assert all(row["item_key"].startswith("trigger:") for row in stored)


async def test_a_command_sent_twice_is_stored_once(slack: Slack, connection: Connection) -> None:
    for _ in range(2):
        assert (await slack.form("/slack/commands", {"command": "/x", "trigger_id": "1.2.a"})).status == 200
    assert len(await rows(connection)) == 1


async def test_a_menu_that_asks_for_its_options_is_stored(slack: Slack, connection: Connection) -> None:
    payload = {"type": "block_suggestion", "action_id": "city", "value": "Ber", "team": {"id": "T1"}}
    for _ in range(2):
        assert (await slack.form("/slack/events", {"payload": json.dumps(payload)})).status == 200
    assert [row["kind"] for row in await rows(connection)] == ["slack.block_suggestion"] * 2


async def test_json_sent_as_a_form_is_refused_for_good(slack: Slack, connection: Connection) -> None:
    body = json.dumps(mention()).encode()
    answer = await slack.post("/slack/events", body, "application/x-www-form-urlencoded")
    assert (answer.status, answer.no_retry) == (400, True)
    assert await rows(connection) == []


async def test_certificate_checks_are_answered(slack: Slack, connection: Connection) -> None:
    assert (await slack.form("/slack/commands", {"ssl_check": "1", "token": "t"})).status == 200
    assert await rows(connection) == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Slack-Signature": "v0=" + "0" * 64},
        {"X-Slack-Request-Timestamp": "1", "X-Slack-Signature": "v0=" + "0" * 64},
        {"X-Slack-Request-Timestamp": "soon", "X-Slack-Signature": "v0=é"},
        {"X-Slack-Request-Timestamp": "9" * 4000, "X-Slack-Signature": "v0="},
        signed(b"{}", secret="guessed"),
        signed(b"{}", timestamp=str(int(time.time()) - 3600)),
        signed(b"{} "),
    ],
)
async def test_what_slack_did_not_sign_lately_is_refused_and_may_be_retried(
    slack: Slack, connection: Connection, headers: dict[str, str]
) -> None:
    assert refused(await slack.send("POST", "/slack/events", b"{}", {**JSON, **headers}), 401)
    assert await rows(connection) == []


async def test_signed_bytes_that_are_no_text_are_refused(slack: Slack) -> None:
    assert refused(await slack.post("/slack/events", b'{"type": "\xff"}'), 401)


async def test_either_secret_is_good_during_a_rotation(database: str) -> None:
    async with served(database, signing_secret=f"the-next-one,{SECRET}") as running:
        assert (await running.slack.event(mention())).status == 200
        running.slack.secret = "the-next-one"
        assert (await running.slack.event(mention())).status == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", b"[]", b"1", b"{", b'{"type": NaN}', b'{"type": "nonsense"}', b'{"type": "event_callback"}',
     b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"type": "event_callback", "event": ' * 300 + b"1" + b"}" * 300],
    ids=lambda body: body[:20],
)  # fmt: skip
async def test_signed_nonsense_is_refused_for_good(slack: Slack, body: bytes) -> None:
    answer = await slack.post("/slack/events", body)
    assert answer.status == 400
    assert answer.no_retry


async def test_large_bodies_are_refused_announced_or_not(slack: Slack) -> None:
    body = json.dumps(mention(text="x" * 2**20)).encode()
    assert refused(await slack.post("/slack/events", body), 413)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    async with slack.session.post(
        slack.url + "/slack/events", data=chunks(), headers={**JSON, **signed(body)}
    ) as response:
        assert refused(Answer(response, await response.read()), 413)


async def test_the_largest_body_is_stored(slack: Slack, connection: Connection) -> None:
    payload = mention(text="")
    payload["event"]["text"] = "é" * ((2**20 - len(json.dumps(payload))) // 6)
    assert (await slack.event(payload)).status == 200
    assert json.loads((await rows(connection))[0]["event"]) == payload


async def test_other_content_types_and_compressed_bodies_are_refused(
    slack: Slack, connection: Connection
) -> None:
    body = json.dumps(mention()).encode()
    bomb = gzip.compress(b"[" * 50_000_000)
    for content_type in ("text/plain", "multipart/form-data; boundary=x", ""):
        assert refused(await slack.post("/slack/events", body, content_type), 415)
    assert refused(await slack.post("/slack/commands", b"command=/x", "application/json"), 415)
    for packed in (gzip.compress(body), bomb):
        assert refused(await slack.post("/slack/events", packed, **{"Content-Encoding": "gzip"}), 415)
    assert refused(await slack.post("/slack/events", body, **{"Content-Encoding": "br"}), 415)
    assert (await slack.post("/slack/events", body, "application/json; charset=utf-8")).status == 200
    assert len(await rows(connection)) == 1


async def test_other_paths_and_methods_are_refused(slack: Slack) -> None:
    for path in (
        "/",
        "/slack",
        "/slack/events/",
        "/slack/Events",
        "/livez",
        "/metrics",
        "/v1/jobs",
        "/%00",
        "/slack/../slack/x",
    ):
        assert refused(await slack.send("POST", path, b"{}", JSON), 404), path
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = await slack.send(method, "/slack/events", b"", {})
        assert refused(answer, 405), method
        assert answer.headers["Allow"] == "POST"


async def test_a_body_that_trickles_in_is_given_up(service: Served, slack: Slack) -> None:
    service.ingest.bodies.read_within = 0.2
    body = b'{"type": "event_callback"}'

    async def trickle() -> AsyncIterator[bytes]:
        yield body[:5]
        await asyncio.Event().wait()  # until the answer is here

    headers = {**JSON, **signed(body), "Content-Length": str(len(body))}
    async with slack.session.post(slack.url + "/slack/events", data=trickle(), headers=headers) as response:
        assert refused(Answer(response, await response.read()), 408)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("nul \x00 here", "nul \ufffd here"),
        ("half \ud83d here", "half \ufffd here"),
        ("whole \U0001f600 here", "whole \U0001f600 here"),
        ("backslash \\u0000 here", "backslash \\u0000 here"),
    ],
)
async def test_text_postgresql_cannot_hold_is_stored_with_replacements(
    slack: Slack, connection: Connection, sent: str, kept: str
) -> None:
    assert (await slack.event(mention(text=sent))).status == 200
    assert json.loads((await rows(connection))[0]["event"])["event"]["text"] == kept


@pytest.mark.parametrize("number", ["1e999999", "-1e999", "1e-999999", "9" * 200_000, "0." + "1" * 50_000])
async def test_numbers_postgresql_would_inflate_are_refused_for_good(
    slack: Slack, connection: Connection, number: str
) -> None:
    body = json.dumps(mention(odd="NUMBER")).replace('"NUMBER"', number).encode()
    answer = await slack.post("/slack/events", body)
    assert (answer.status, answer.no_retry) == (400, True)
    assert b"a number is" in answer.body
    assert await rows(connection) == []


async def test_numbers_just_within_bounds_are_stored_as_numbers(slack: Slack, connection: Connection) -> None:
    body = (
        json.dumps(mention(odd="NUMBER"))
        .replace('"NUMBER"', "[1e308, 5e-324, -0.0, 12345678901234567890.125]")
        .encode()
    )
    assert (await slack.post("/slack/events", body)).status == 200
    assert "12345678901234567890.125" in (await rows(connection))[0]["event"]


@pytest.mark.parametrize(
    "event_ts", ["", "garbled", "1e99", "-1", "0", "9" * 400, "NaN", None, 17, [1], "1469470591.759709"]
)
async def test_an_event_without_a_sound_event_ts_is_stored_all_the_same(
    slack: Slack, connection: Connection, event_ts: object
) -> None:
    assert (await slack.event(mention(event_ts=event_ts))).status == 200
    assert len(await rows(connection)) == 1


async def test_of_a_repeated_key_the_last_counts(slack: Slack, connection: Connection) -> None:
    body = json.dumps(mention()).encode()[:-1] + b', "event_id": "EvLast", "extra": 1, "extra": 2}'
    assert (await slack.post("/slack/events", body)).status == 200
    stored = (await rows(connection))[0]
    assert (stored["item_key"], json.loads(stored["event"])["extra"]) == ("EvLast", 2)


async def test_a_message_delivered_under_two_event_ids_is_one_event(
    database: str, connection: Connection
) -> None:
    async with served(database, event_types="app_mention,message.channels") as running:
        first = mention()
        second = envelope({**first["event"], "type": "message", "channel_type": "channel"})
        assert (await running.slack.event(first)).status == 200
        assert (await running.slack.event(second)).status == 200
    assert [row["item_key"] for row in await rows(connection)] == [f"message:T1:C1:{first['event']['ts']}"]


async def test_probes_answer_for_the_process_and_for_the_database(service: Served) -> None:
    async with aiohttp.ClientSession() as session:
        for path, status in (("/livez", 200), ("/readyz", 200), ("/nothing", 404)):
            async with session.get(service.private_url + path) as response:
                assert response.status == status
        service.ingest.drain.set()
        async with session.get(service.private_url + "/readyz") as response:
            assert response.status == 503


async def test_a_service_on_another_schema_is_not_ready(database: str, connection: Connection) -> None:
    async def readiness(running: Served) -> int:
        async with running.slack.session.get(running.private_url + "/readyz") as response:
            return response.status

    async with served(as_role(database, "surelane_ingest")) as running:
        await connection.execute("update agent.version set version = '9.0.0', min_compatible = '0.1.0'")
        assert await readiness(running) == 200
        await connection.execute("update agent.version set version = '9.0.0', min_compatible = '9.0.0'")
        assert await readiness(running) == 503


async def test_a_draining_service_asks_slack_to_come_back(service: Served, slack: Slack) -> None:
    service.ingest.drain.set()
    answer = await slack.event(mention())
    assert refused(answer, 503)
    assert answer.headers["Retry-After"]


async def test_an_empty_database_is_an_error_that_slack_retries(empty_database: str) -> None:
    async with served(empty_database) as running:
        answer = await running.slack.event(mention(event_id()))
        assert refused(answer, 503)
        async with running.slack.session.get(running.private_url + "/readyz") as response:
            assert response.status == 503

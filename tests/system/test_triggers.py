"""Webhooks on the public port are stored or refused as documented, also while the database is away."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from surelane.calls import Connection
from surelane_service.webhooks import SIGNATURE, TIMESTAMP, sign
from tests.databases import Server
from tests.processes import free_port
from tests.system.ingest_client import Answer, Served, own_ingest, served, served_alone

NEW, OLD, OTHER = b"n" * 32, b"o" * 32, b"x" * 32


def secret(key: bytes) -> str:
    return f"whsec_{base64.b64encode(key).decode()}"


SECRETS = f"git={secret(NEW)}|{secret(OLD)},hub={secret(OTHER)}"


system, ingest, connection = own_ingest(trigger_secrets=SECRETS, max_body=2048, body_memory=4096)


async def post(
    ingest: Served,
    body: bytes = b'{"n": 1}',
    *,
    name: str = "git",
    key: bytes = NEW,
    identity: str = "msg_1",
    headers: Mapping[str, str | None] | None = None,
) -> Answer:
    """Post a webhook. ``headers`` override its own; ``None`` leaves one out."""
    sent: dict[str, str | None] = {"Content-Type": "application/json", **sign(identity, body, [key])}
    chosen = {header: value for header, value in {**sent, **(headers or {})}.items() if value is not None}
    return await ingest.slack.send("POST", f"/v1/triggers/{name}", body, chosen)


async def test_a_webhook_is_stored_once_however_often_it_comes(
    ingest: Served, connection: Connection
) -> None:
    answers = [await post(ingest, key=key) for key in (NEW, NEW, OLD)]
    assert [answer.status for answer in answers] == [200, 200, 200]
    told = [json.loads(answer.body) for answer in answers]
    assert [answer["duplicate"] for answer in told] == [False, True, True]
    (row,) = await connection.fetch("select * from agent.event")
    assert {answer["id"] for answer in told} == {row["id"]}
    stored = (row["kind"], row["item_key"], row["enqueued_by"])
    assert stored == ("trigger-fire", "webhook:git:msg_1", "webhook:git")
    assert json.loads(row["event"]) == {"trigger": "git", "webhook_id": "msg_1", "payload": {"n": 1}}


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"key": OTHER}, 401),
        ({"name": "hub"}, 401),
        ({"name": "unknown"}, 401),
        ({"headers": {SIGNATURE: None}}, 401),
        ({"headers": {TIMESTAMP: "1"}}, 401),
        ({"headers": {"Content-Type": "text/plain"}}, 415),
        ({"headers": {"Content-Encoding": "gzip"}}, 415),
        ({"body": b'"' + b"x" * 3000 + b'"'}, 413),
        *(({"body": body}, 400) for body in (b"{", b"", b"\xff", b"[" * 1000)),
        *(({"name": name}, 404) for name in ("git/x", "")),
    ],
)
async def test_what_is_not_a_sound_webhook_is_refused_and_stored_nowhere(
    ingest: Served, connection: Connection, options: dict[str, Any], status: int
) -> None:
    assert (await post(ingest, **options)).status == status
    assert await connection.fetchval("select count(*) from agent.event") == 0


async def test_any_json_is_stored_as_far_as_the_database_can_hold_it(
    ingest: Served, connection: Connection
) -> None:
    bodies = (b"[1]", b"null", rb'{"a": "\u0000\ud800"}')
    for number, body in enumerate(bodies):
        assert (await post(ingest, body, identity=f"msg_{number}")).status == 200
    stored = await connection.fetch("select event -> 'payload' as payload from agent.event order by id")
    assert [json.loads(row["payload"]) for row in stored] == [[1], None, {"a": "\ufffd\ufffd"}]


async def test_only_posts_are_taken_and_no_answers_without_remote_agents(ingest: Served) -> None:
    for path in ("/v1/triggers/git", "/v1/dispatch/1"):
        async with ingest.slack.session.get(ingest.url + path) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")
    headers = {"Content-Type": "application/json", **sign("a", b"{}", [NEW])}
    for identity in ("1", "x", "0", "9" * 30, "-1"):
        assert (await ingest.slack.send("POST", f"/v1/dispatch/{identity}", b"{}", headers)).status == 401


async def test_a_webhook_is_refused_for_now_while_the_database_is_away() -> None:
    nowhere = f"postgresql://surelane_ingest@127.0.0.1:{free_port()}/nowhere"
    async with served(nowhere, trigger_secrets=SECRETS, database_budget="500ms") as ingest:
        answer = await post(ingest)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
        ingest.ingest.drain.set()
        assert (await post(ingest)).status == 503


async def test_a_webhook_whose_duplicate_is_held_by_a_long_transaction_is_refused_for_now(
    server: Server, template: str
) -> None:
    alone = served_alone(server, template, trigger_secrets=SECRETS, database_budget="3s")
    async with alone as (ingest, holder):
        assert (await post(ingest, identity="msg_0")).status == 200
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("""select agent.fire_trigger('git', 'msg_1', '{}')""")
        assert (await post(ingest)).status == 503
        assert (await post(ingest, identity="msg_2")).status == 200
        await transaction.rollback()
        assert (await post(ingest)).status == 200

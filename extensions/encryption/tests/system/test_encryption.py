"""With encryption on, the database never has what people wrote, and everything else goes on as before."""

import base64
import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import aiohttp
import asyncpg
import pytest

from surelane import Job, Queue
from surelane.calls import Connection, Pool
from surelane.codec import ANSWER, RESULT, DamagedError, Location
from surelane_encryption.keys import Keyring, new_key
from surelane_encryption.sealing import codec_for
from surelane_ingest.answers import AnswerWaits
from surelane_operator.changes import Changes
from surelane_service.engine import Engine
from surelane_service.pool import Listener
from surelane_service.service_settings import DEMO_SIGNING_SECRET
from surelane_service.webhooks import answer_id, sign
from tests.databases import Server, as_role
from tests.scenario import eventually, new_mention, replies, send
from tests.sql.migrations import connected
from tests.sql.queue_steps import await_answer, claim, pair
from tests.system.ingest_client import Slack, mention, served
from tests.system.operators import page
from tests.system.test_cli import Command
from tests.system.whole import whole
from tests.system.worker import ended, live, worker

KEY = new_key()
HANDLERS = "extensions.encryption.tests.system.sealed_handlers:handlers"
TOKEN = "an-operators-token-0123456789"
ON = {"SURELANE_ENCRYPTION_KEYS": KEY, "SURELANE_ENCRYPT_EVENTS": "true"}
KEYS = {"SURELANE_ENCRYPTION_KEYS": KEY}


async def stored(server: Server, database: str, since: str, text: str) -> list[str]:
    """Return where a text stands: tables whose dump has it, and files of the write-ahead log since a place in it."""
    name = database.partition("?")[0].rpartition("/")[2]
    admin = await asyncpg.connect(server.admin, database=name)
    try:
        tables = await admin.fetch(
            "select relname from pg_class where relnamespace = 'agent'::regnamespace and relkind in ('r', 'p')"
        )
        found = []
        for (table,) in tables:
            query = f"select count(*) from agent.{table} as r where position($1 in r::text) > 0"
            if await admin.fetchval(query, text):
                found.append(table)
        await admin.execute("select pg_switch_wal()")
        return found + [
            row["name"]
            for row in await admin.fetch(
                "select name from pg_ls_waldir() where name ~ '^[0-9A-F]{24}$'"
                " and name >= pg_walfile_name($1::text::pg_lsn) and name <= pg_walfile_name(pg_current_wal_lsn())"
                " and position($2::bytea in pg_read_binary_file('pg_wal/' || name, true)) > 0",
                since,
                text.encode(),
            )
        ]
    finally:
        await admin.close()


async def place(connection: Connection | Pool) -> str:
    return str(await connection.fetchval("select pg_current_wal_lsn()::text"))


async def test_a_dump_and_the_log_have_nothing_of_a_message_that_went_all_the_way(
    server: Server, database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    since, declared = await place(connection), os.urandom(8).hex()
    env = {**ON, "SURELANE_BACKOFF_BASE": "50ms"}
    handling = {"SURELANE_HANDLERS": HANDLERS, "DECLARED_TEXT": declared}
    operators = {**ON, "SURELANE_API_TOKEN": TOKEN}
    async with (
        whole(database, env=env, worker_env=handling) as running,
        page(as_role(database, "surelane_operator"), **operators) as desk,
    ):
        said = await new_mention(running.system)
        assert [await send(running.system, said) for _ in range(2)] == [200, 200]
        identity = await connection.fetchval("select id from agent.job where item_key = $1", said.event_id)
        row = await ended(connection, identity)
        assert (row["outcome"], row["attempts"], row["kind"]) == ("completed", 2, "slack.app_mention")
        assert row["group_key"] == f"T0SURELANE:C0GENERAL1:{said.thread_ts}"
        assert len(await replies(running.system, said)) == 1
        for event in await connection.fetch("select id from agent.job where kind in ('note', 'sum')"):
            assert (await ended(connection, event["id"]))["outcome"] == "completed"

        schedules = "select count(*) from agent.cron where name = 'declared'"
        await eventually(lambda: connection.fetchval(schedules), 1, within=60)
        fired = await ended(connection, await connection.fetchval("select agent.run_cron('declared')"))
        assert (fired["outcome"], json.loads(fired["result"])["surelane.sealed"]) == ("completed", ANY)

        command = {"command": "/repeat", "text": said.text, "trigger_id": "1.2.3", "team_id": "T0SURELANE"}
        async with aiohttp.ClientSession() as session:
            slack = Slack(session, running.ingest.url, DEMO_SIGNING_SECRET)
            answer = await slack.form("/slack/commands", command)
            assert json.loads(answer.body)["text"] == said.text

            headers = {"Authorization": f"Bearer {TOKEN}"}
            url = f"{desk}/v1/jobs/{identity}"
            async with session.get(f"{url}/payload", headers=headers) as response:
                shown = await response.json()
            assert said.text in shown["payload"]["event"]["text"]
            async with session.get(url, headers=headers) as response:
                story = await response.json()
        assert story["result"]["said"].endswith(said.text)
        assert story["errors"][0]["message"].endswith(said.text)
        looks = await connection.fetchval(
            "select count(*) from agent.operator_action where action = 'look at payload'"
        )
        assert looks == 2

    (total,) = await connection.fetch("select id from agent.event_hist where kind = 'sum'")
    monkeypatch.setenv("SURELANE_ENCRYPTION_KEYS", KEY)
    assert said.text in await command_output(database, total["id"])
    monkeypatch.delenv("SURELANE_ENCRYPTION_KEYS")
    unread = await command_output(database, total["id"])
    assert said.text not in unread
    assert "cannot be decrypted: it is encrypted, and SURELANE_ENCRYPTION_KEYS is not set here" in unread

    for text in (said.text, declared):
        assert await stored(server, database, since, text) == []
    made = await connection.fetch("select workspace from agent.data_key order by 1")
    assert [row["workspace"] for row in made] == ["", "T0SURELANE"], "and that of no workspace, for programs"


async def command_output(database: str, identity: int) -> str:
    shown = await Command(as_role(database, "surelane_operator"))("events", "show", str(identity), "--json")
    assert shown.code == 0, shown
    return shown.out + shown.err


async def post(database: str, *texts: str, **settings: Any) -> list[int]:
    """Send mentions to an ingest; return the ids of their events, in their order."""
    async with served(as_role(database, "surelane_ingest"), **settings) as ingest:
        for text in texts:
            assert (await ingest.slack.event(mention(text=text))).status == 200
    async with connected(database) as connection:
        return [row["id"] for row in await connection.fetch("select id from agent.event order by id")]


async def test_an_event_waits_for_a_worker_with_the_key_and_says_so(
    database: str, connection: Connection
) -> None:
    plain, sealed = [
        (await post(database, text, encryption_keys=KEY, encrypt_events=on))[-1]
        for text, on in (("before", False), ("secret", True))
    ]
    handlers = {"SURELANE_HANDLERS": "tests.system.worker_handlers:handlers"}
    kind = "update agent.event set kind = 'echo', group_key = null, head = true"
    await connection.execute(kind)
    async with worker(database, **handlers):
        await ended(connection, plain)
        operations = Changes(connection)

        async def waits() -> bool:
            why = await operations.why(sealed)
            return why is not None and why[0] == "no_key" and "SURELANE_ENCRYPTION_KEYS is not set" in why[1]

        await eventually(waits, expected=True, within=60)
    assert (await live(connection, sealed))["attempts"] == 0
    # Another worker has the keys, although it encrypts nothing: the setting is switched off.
    async with worker(database, **handlers, **KEYS):
        row = await ended(connection, sealed)
    assert (row["outcome"], row["attempts"]) == ("completed", 1), row["errors"]
    assert json.loads(row["result"])["event"]["text"] == "secret"


async def test_what_is_damaged_erased_or_moved_from_another_event_ends_with_the_reason(
    database: str, connection: Connection
) -> None:
    damaged, erased, sound = await post(
        database, "one", "two", "three", encryption_keys=KEY, encrypt_events=True
    )
    seal = codec_for(Keyring([KEY]), connection, on=True)
    text, _ = await seal.seal_event(
        json.dumps(mention(text="gone") | {"team_id": "T2", "authorizations": []}), None
    )
    await connection.execute("update agent.event set kind = 'note', group_key = null, head = true")
    cut_off = "jsonb_set(event, '{surelane.sealed}', to_jsonb(left(event ->> 'surelane.sealed', 200)))"
    await connection.execute(f"update agent.event set event = {cut_off} where id = $1", damaged)
    await connection.execute("update agent.event set event = $2 where id = $1", erased, text)
    await connection.execute("delete from agent.data_key where workspace = 'T2'")

    engine = Engine(connection, seal)
    one, other, own = [
        each.id
        for each in await Queue(connection, encryption=seal).enqueue_many(
            [Job("looked", {"team_id": "T1"}) for _ in range(3)]
        )
    ]
    events = await engine.claim_events(["looked"], 3, worker="w")
    await seal.open_events(events)
    for event in events:
        seen = json.dumps({"seen": event.id})
        await engine.store_step(event.id, 1, "look", 1, None, seen, "[]", timedelta(0))
    await connection.execute(
        "update agent.step as s set result = t.result from agent.step as t"
        " where s.event_id = any($1) and t.event_id = any($1) and s.event_id <> t.event_id",
        [one, other],
    )
    ids, claims = [event.id for event in events], [event.claim for event in events]
    await connection.fetchval("select agent.settle($1, $2, $3)", ids, claims, ["release"] * 3)

    async with worker(database, SURELANE_HANDLERS=HANDLERS, **ON) as running:
        rows = [await ended(connection, each) for each in (damaged, erased, sound, one, other, own)]
    assert [(row["outcome"], row["reason"]) for row in rows] == [
        ("failed", "damaged"),
        ("failed", "key_destroyed"),
        ("completed", None),
        ("failed", "damaged"),
        ("failed", "damaged"),
        ("completed", None),
    ]
    assert [row["attempts"] for row in rows[:3]] == [1, 1, 1]
    assert not [line for line in running.output if "three" in line]
    changes = Changes(connection, seal)
    shown = [await changes.get(identity, texts=True) for identity in (damaged, own)]
    assert shown[0] is not None
    assert shown[0]["errors"][-1]["message"] == "it is damaged, or was changed in the database"
    assert shown[1] is not None
    assert shown[1]["result"] == {"seen": own}


async def test_answers_of_remote_agents_and_to_slack_open_for_their_event_alone(
    database: str, connection: Connection
) -> None:
    seal = codec_for(Keyring([KEY]), connection, on=True)
    secret = f"scribe=whsec_{base64.b64encode(KEY.encode()).decode()}"
    settings: dict[str, Any] = {"dispatch_secrets": secret, "encryption_keys": KEY, "encrypt_events": True}
    async with served(as_role(database, "surelane_ingest"), **settings) as ingest:
        ids = []
        for _ in range(2):
            ids.append(await Queue(connection).enqueue("dispatch-execute", {"agent": "scribe"}))
            (row,) = await claim(connection, "dispatch-execute")
            await await_answer(connection, pair(row), datetime.now(UTC) + timedelta(minutes=10))
        for identity in ids:
            body = json.dumps({"of": identity}).encode()
            headers = {"Content-Type": "application/json", **sign(answer_id(identity), body, [KEY.encode()])}
            sent = await ingest.slack.send("POST", f"/v1/dispatch/{identity}", body, headers)
            assert sent.status == 200
    stored = {
        row["id"]: row["result"] for row in await connection.fetch("select id, result from agent.event_hist")
    }
    for identity, other in (ids, reversed(ids)):
        assert json.loads(await seal.open(stored[identity], Location(identity, RESULT))) == {"of": identity}
        with pytest.raises(DamagedError):
            await seal.open(stored[other], Location(identity, RESULT))

    answers = AnswerWaits(Listener("", service="", within=timedelta(seconds=1)), seal, most=1)
    text = await seal.seal('"an answer"', Location(ids[0], ANSWER))
    assert [await answers.opened(text, Location(identity, ANSWER)) for identity in ids] == [
        '"an answer"',
        None,
    ]

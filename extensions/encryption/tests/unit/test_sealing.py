"""Data keys in the database: made once, sealed anew, destroyed; and sealed events are queued as plain ones are."""

import asyncio
import hashlib
import json
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest
from typer.testing import CliRunner

from surelane.calls import Connection
from surelane.codec import (
    PLAIN,
    RESULT,
    SEALED,
    Codec,
    DamagedError,
    KeyDestroyedError,
    Location,
    NoKeyError,
    SealedError,
)
from surelane.errors import InvalidInput
from surelane.events import Event
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from surelane_encryption.data_keys import KEPT_FOR, DataKeys
from surelane_encryption.envelopes import clear_part
from surelane_encryption.keys import Keyring, new_key
from surelane_encryption.sealing import Sealing, codec_for
from surelane_operator.changes import Changes
from surelane_operator.cli.command import app
from surelane_operator.console.pages import fragment
from surelane_operator.console.screen import ScreenAddress, Sources
from surelane_operator.console.screens import SCREENS
from surelane_operator.reads.queue import read_schedules
from surelane_service.cron import Cron
from surelane_service.engine import Engine, Settled
from surelane_service.intake import Intake
from surelane_worker.handling.outcomes import sealed_argument
from tests.databases import as_role
from tests.sql.conftest import Connect
from tests.sql.test_codec import WORD, Everything, tables_with

OLD, NEW = new_key(), new_key()
SECRET = "the merger closes on friday"

PAYLOADS: list[dict[str, Any]] = [
    {
        "type": "event_callback",
        "team_id": "T1",
        "event_id": "Ev1",
        "event_time": 1_700_000_000,
        "event": {"type": "message", "channel": channel, "user": "U1", "text": SECRET, "ts": "1.2", **more},
    }
    for channel, more in (
        ("D1", {"channel_type": "im", "event_ts": "1700000000.000100"}),
        ("C1", {"channel_type": "channel", "thread_ts": "1.1"}),
    )
] + [{"agent": "billing", "task": SECRET}]


class Held:
    """What sealed events need: connections of each role, and what works with the keys over them."""

    def __init__(self, queue: Connection, service: Connection, operator: Connection) -> None:
        self.queue, self.service, self.operator = queue, service, operator
        self.seal = sealing(service)
        self.jobs = Queue(service, encryption=self.seal)
        self.engine = Engine(service, self.seal)
        self.operations = Changes(operator, self.seal)

    async def claim(self, kind: str, count: int = 1) -> list[Event]:
        """Claim events and open them."""
        events = await self.engine.claim_events([kind], count, worker="w")
        await self.seal.open_events(events)
        return events

    async def settle(self, run: Event, claim: int, outcome: str, argument: object) -> None:
        sealed = await sealed_argument(self.seal, run.id, outcome, json.dumps(argument))
        await self.engine.settle([(run.id, claim, outcome, sealed)])

    async def two_runs(self) -> list[Event]:
        payloads = [{"team_id": "T1", "text": f"{SECRET} {nth}"} for nth in (1, 2)]
        await self.jobs.enqueue_many([Job("note", payload) for payload in payloads])
        return await self.claim("note", 2)

    async def swap(self, table: str, column: str, key: str = "id") -> None:
        """Swap a column of the two rows of a table."""
        rows = await self.queue.fetch(f"select {key} as key, {column} as value from agent.{table}")
        assert len(rows) == 2
        change = f"update agent.{table} set {column} = $1 where {key} = $2"
        for row, other in zip(rows, reversed(rows), strict=True):
            await self.queue.execute(change, other["value"], row["key"])

    async def shown(self, identity: int | None) -> dict[str, Any]:
        assert identity is not None
        job = await self.operations.get(identity, texts=True)
        assert job is not None
        return job


@pytest.fixture
async def held(queue: Connection, service: Connection, connect: Connect) -> Held:
    return Held(queue, service, await connect("surelane_operator"))


def sealing(connection: Connection, *keys: str, on: bool = True) -> Sealing:
    return codec_for(Keyring(keys or (NEW,)), connection, on=on)


async def opened(codec: Codec, text: str) -> Any:
    return json.loads(await codec.open(text))


async def test_sql_derives_the_same_from_a_sealed_event(queue: Connection) -> None:
    """tests/sql/test_payloads.py compares the clear part of all sorts of payloads."""
    derive = (
        "select agent.event_kind($1), agent.event_group_key($1), agent.event_workspace($1), agent.event_channel($1)"
        ", agent.event_user($1), $1 ->> 'agent', agent.event_time($1, '2026-01-01')"
    )
    for payload in PAYLOADS:
        text, _ = await sealing(queue).seal_event(json.dumps(payload), None)
        assert SECRET not in text
        assert await queue.fetchrow(derive, text) == await queue.fetchrow(derive, json.dumps(payload))


async def test_processes_that_begin_together_make_one_key(service: Connection, connect: Connect) -> None:
    others = [await connect("surelane_ingest") for _ in range(4)]
    keys = await asyncio.gather(
        *(DataKeys(each, Keyring([NEW])).current("T1") for each in (service, *others))
    )
    assert len({key.raw for key in keys}) == 1
    other = await DataKeys(service, Keyring([NEW])).current("T2")
    assert other.raw != keys[0].raw


async def test_a_data_key_is_kept_for_a_minute(service: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = DataKeys(service, Keyring([NEW]))
    first = await keys.current("T1")
    async with service.transaction():  # every other call would wait for it, or fail
        assert (await keys.current("T1"), keys.kept("T1")) == (first, first)
        assert await keys.by_ids([first.id]) == {first.id: first}
    later = monotonic() + KEPT_FOR.total_seconds()
    monkeypatch.setattr("surelane_encryption.data_keys.monotonic", lambda: later)
    second = await keys.current("T1")
    assert second == first
    assert second.ciphers is not first.ciphers
    assert second.ciphers.current()[0] != first.ciphers.current()[0]


async def test_held_events_are_remembered(service: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surelane_encryption.sealing._FEW", 2)
    seal = sealing(service)

    def claimed(identity: int) -> Event:
        now = datetime.now(UTC)
        return Event(identity, "note", now, 1, 1, now, json.dumps({"team_id": f"T{identity}"}))

    held = [claimed(1), claimed(2)]
    await seal.open_events(held)
    for identity in range(3, 50):
        await seal.open_events([claimed(identity)])
    assert [seal.workspace_of(identity) for identity in (1, 2, 3)] == ["T1", "T2", ""]
    assert len(vars(seal)["_events"]) < 10


async def test_a_rotation_touches_no_event_and_goes_on_while_events_come(
    service: Connection, queue_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = sealing(service, OLD)
    text, _ = await old.seal_event(json.dumps(PAYLOADS[0]), None)
    monkeypatch.setenv("SURELANE_ENCRYPTION_KEYS", f"{NEW},{OLD}")
    database = as_role(queue_database, "surelane_operator")
    done = await asyncio.to_thread(CliRunner().invoke, app, ["keys", "rotate", "--database", database])
    assert (done.exit_code, done.output.split()[0]) == (0, "1"), done.output
    # A process that still has the old list goes on with the key that it keeps; a new one needs the new list.
    again, _ = await old.seal_event(json.dumps(PAYLOADS[1]), None)
    for each, payload in ((text, PAYLOADS[0]), (again, PAYLOADS[1])):
        assert await opened(sealing(service, NEW), each) == payload
    with pytest.raises(NoKeyError, match="which SURELANE_ENCRYPTION_KEYS lacks"):
        await opened(sealing(service, OLD), text)


async def test_a_retired_key_is_destroyed_and_errors_say_why(queue: Connection, service: Connection) -> None:
    before = sealing(service)
    text, _ = await before.seal_event(json.dumps(PAYLOADS[0]), None)
    assert await queue.fetchval("select agent.retire_data_key('T2')") is None
    assert await queue.fetchval("select agent.retire_data_key('T1')") >= timedelta(0)
    later, _ = await sealing(service).seal_event(json.dumps(PAYLOADS[1]), None)
    # An erasure that goes on does not retire the new key, too.
    assert await queue.fetchval("select agent.retire_data_key('T1')") >= timedelta(0)
    assert await queue.fetchval("select agent.destroy_data_keys('T1', interval '1 minute')") == 0
    await queue.execute("update agent.test_clock set shift = interval '2 minutes'")
    assert await queue.fetchval("select agent.destroy_data_keys('T1', interval '1 minute')") == 1
    assert await opened(sealing(service), later) == PAYLOADS[1]
    with pytest.raises(KeyDestroyedError):
        await opened(sealing(service), text)
    text, _ = await sealing(service).seal_event(json.dumps(PAYLOADS[0]), None)
    value = json.loads(text)
    with pytest.raises(NoKeyError, match="it is encrypted, and SURELANE_ENCRYPTION_KEYS is not set"):
        await PLAIN.open(text)
    with pytest.raises(DamagedError):
        await sealing(service).open(json.dumps({**value, SEALED: value[SEALED][:-8] + "AAAAAAA="}))
    shown = await PLAIN.show(value)
    assert shown[SEALED].startswith("cannot be decrypted: it is encrypted")
    assert shown["event"]["user"] == "U1"
    await queue.execute("delete from agent.data_key")
    with pytest.raises(KeyDestroyedError, match="its workspace was erased"):
        await sealing(service).open(text)


async def test_all_that_an_event_holds_is_stored_sealed_and_read_open(held: Held) -> None:
    identity = await Everything(held.queue, held.seal).run()
    assert await tables_with(held.queue, WORD) == set()
    assert (await held.shown(identity))["reason"] == "encrypted"
    locked: Any = await Changes(held.operator).get(identity, texts=True)
    assert locked["errors"][0]["message"].startswith("cannot be decrypted")
    assert locked["tags"]["bird"].startswith("cannot be decrypted")


async def test_a_new_run_with_another_payload_is_encrypted_as_the_event_was(held: Held) -> None:
    identity = await held.jobs.enqueue("note", {"team_id": "T1", "text": "first"})
    (event,) = await held.claim("note")
    await held.engine.settle([(event.id, 1, "complete", None)])
    payload = {"team_id": "T1", "text": SECRET}
    plain = Changes(held.operator, sealing(held.service, on=False))
    new = await plain.rerun_as_new(identity, payload=payload)
    stored = await held.queue.fetchval("select event from agent.event where id = $1", new.id)
    assert SECRET not in stored
    assert await opened(held.seal, stored) == payload
    assert clear_part(json.loads(stored)) == {"team_id": "T1"}
    with pytest.raises(Exception, match="is a JSON object"):
        await held.operations.rerun_as_new(identity, payload=["text"])
    with pytest.raises(Exception, match="cannot be replaced: it is encrypted"):
        await Changes(held.operator).rerun_as_new(identity, payload={"text": "other"})


async def test_a_schedules_payload_is_stored_sealed_and_its_jobs_are_as_before(held: Held) -> None:
    queue, operations = held.queue, held.operations
    payload = {"team_id": "T1", "channel": "C1", "text": SECRET}
    await held.engine.set_cron("declared", kind="tick", schedule="0 3 * * *", payload=payload)
    await operations.set_cron("set", Cron("0 3 * * *"), kind="tick", payload=payload)
    assert SECRET not in await queue.fetchval("select string_agg(c::text, '') from agent.cron as c")
    stored = (await read_schedules(Changes(queue, held.seal))).schedules
    assert [each.payload for each in stored] == [payload, payload]
    assert [row["payload"] for row in await operations.list_cron()] == [payload, payload]

    due = await queue.fetchval("select next_at from agent.cron where name = 'declared'")
    assert await Engine(held.service).fire_cron("declared", due, [due], due + timedelta(days=1)) == 1
    identity = await operations.run_cron("set")
    assert SECRET not in await queue.fetchval("select string_agg(e::text, '') from agent.event as e")
    events = await held.claim("tick", 2)
    await held.seal.open_events(events, required=True)
    fired = {event.payload["cron"]: event for event in events}
    assert fired["set"].id == identity
    assert datetime.fromisoformat(fired["declared"].payload["scheduled_at"]) == due
    assert fired["declared"].item_key == f"cron:declared:{due:%Y-%m-%dT%H:%M:%SZ}"
    for event in events:
        own = {name: event.payload[name] for name in ("cron", "scheduled_at")}
        assert (event.payload, event.workspace) == (payload | own, "T1")
    assert (await held.shown(fired["set"].id))["payload"] == fired["set"].payload
    mine = {"text": SECRET, "scheduled_at": "mine"}
    identity = await held.jobs.enqueue("tock", mine)
    text = await queue.fetchval("select event from agent.event where id = $1", identity)
    assert await opened(held.seal, text) == mine


async def test_a_schedule_is_not_edited_where_its_payload_cannot_be_read(held: Held) -> None:
    cron, stored = Cron("0 3 * * *"), "select payload from agent.cron"
    await held.operations.set_cron("s", cron, kind="tick", payload={"text": SECRET})
    before = await held.queue.fetchval(stored)
    without = Changes(held.operator)
    (row,) = await without.list_cron()
    assert row["payload"][SEALED].startswith("cannot be decrypted")
    for payload in (row["payload"], {"text": "other"}):
        with pytest.raises(InvalidInput, match="crypted"):
            await without.set_cron("s", cron, kind="tick", payload=payload)
    assert await held.queue.fetchval(stored) == before
    # The page has a form with the text where the key is, and none elsewhere.
    (screen,) = (each for each in SCREENS if each.name == "schedule")
    for seal, forms, shown in ((PLAIN, 0, "cannot be decrypted"), (held.seal, 1, SECRET)):
        sources = Sources(Changes(held.queue, seal))
        page = fragment(screen, await screen.read(sources, ScreenAddress({"name": "s"})))
        assert (page.count('data-action="PUT'), shown in page) == (forms, True)
        assert json.loads(before)[SEALED] not in page
    # Where it is switched off and the key is there, what is encrypted stays encrypted.
    off = Changes(held.operator, sealing(held.service, on=False))
    await off.set_cron("s", cron, kind="tick", payload={"text": SECRET + "!"})
    assert SECRET not in await held.queue.fetchval(stored)
    await off.set_cron("t", cron, kind="tick", payload={"a": 1})
    assert json.loads(await held.queue.fetchval(stored + " where name = 't'")) == {"a": 1}


async def test_a_webhooks_payload_is_sealed_inside_its_event(held: Held) -> None:
    intake, seal = Intake(held.queue), held.seal
    payload = {"text": SECRET, SEALED: "a field of the sender's"}
    text = json.dumps(await seal.seal_payload(payload, part=True))
    assert not (await intake.fire_trigger("deploys", "w1", text)).duplicate
    assert (await intake.fire_trigger("deploys", "w1", text)).duplicate
    assert SECRET not in await held.queue.fetchval("select event::text from agent.event")
    (event,) = await held.claim("trigger-fire")
    await seal.open_events([event], required=True)
    assert event.payload == {"trigger": "deploys", "webhook_id": "w1", "payload": payload}
    await intake.fire_trigger("deploys", "w2", json.dumps({SEALED: "AAAA"}))
    (foreign,) = await Engine(held.service).claim_events(["trigger-fire"], 1, worker="w")
    with pytest.raises(SealedError):
        await seal.open_events([foreign], required=True)
    result = await seal.seal(json.dumps(payload), Location(event.id, RESULT))
    await intake.fire_trigger("deploys", "w3", result)
    (moved,) = await held.claim("trigger-fire")
    with pytest.raises(DamagedError):
        await seal.open_events([moved], required=True)


async def test_keys_and_searches_by_place_work_as_before_and_a_key_tells_nothing(held: Held) -> None:
    text = json.dumps({"type": "shortcut", "team": {"id": "T1"}, "text": SECRET})
    (first, key), (second, again) = [await sealing(held.service).seal_event(text, None) for _ in range(2)]
    assert first != second
    assert key is not None
    assert key == again
    assert hashlib.sha256(text.encode()).hexdigest() not in key
    payload = {"team_id": "T1", "channel": "C1", "user": "U1", "text": SECRET}
    one = await held.jobs.enqueue("note", payload, dedupe_key="d", group_key="g")
    assert await held.jobs.enqueue("note", payload, dedupe_key="d", group_key="g") == one
    found = await held.queue.fetch(
        "select (job).id from agent.narrow_jobs(null, null, null, null, null, null, null, 100, 'T1', 'C1', 'U1', null"
        ", '{}') where matches"
    )
    assert [row["id"] for row in found] == [one]


async def test_the_result_and_the_errors_of_an_event_do_not_open_as_those_of_another(held: Held) -> None:
    runs = await held.two_runs()
    for run in runs:
        error = {"type": "ValueError", "message": f"cannot {run.id}"}
        failure = {"error": error, "retry_in": 0, "final": False, "reason": None, "max_attempts": 3}
        await held.settle(run, 1, "fail", failure)
    await held.claim("note", 2)
    for run in runs:
        await held.settle(run, 2, "complete", {"of": run.id})

    async def shown() -> list[tuple[Any, Any]]:
        jobs = [await held.shown(run.id) for run in runs]
        return [(job["result"], job["errors"][0]["message"]) for job in jobs]

    expected = [({"of": run.id}, f"cannot {run.id}") for run in runs]
    assert await shown() == expected
    damaged = "cannot be decrypted: it is damaged, or was changed in the database"
    for column in ("result", "errors"):
        await held.swap("event_hist", column)
    for result, message in await shown():
        assert result[SEALED].startswith(damaged)
        assert message.startswith(damaged)
    for column in ("result", "errors"):
        await held.swap("event_hist", column)
    assert await shown() == expected


async def test_a_childs_result_does_not_open_as_that_of_another(held: Held) -> None:
    parent = await held.jobs.fan_out(
        [Job("child", {"team_id": "T1"}) for _ in range(2)], Continuation("then")
    )
    children = await held.claim("child", 2)
    for each in children:
        await held.settle(each, 1, "complete", {"of": each.id})
    assert [child.result == {"of": child.id} for child in await held.jobs.children(parent)] == [True, True]
    await held.swap("event_hist", "result")
    swapped = await held.jobs.children(parent)
    assert [child.status for child in swapped] == ["completed", "completed"]
    for child in swapped:
        assert child.payload == {"team_id": "T1"}
        with pytest.raises(DamagedError):
            _ = child.result


@pytest.mark.parametrize("column", ["result", "arguments"])
async def test_a_step_does_not_open_as_another_events_or_another_step(held: Held, column: str) -> None:
    engine = held.engine
    first, second = await held.two_runs()
    for run, names in ((first, ("look", "look")), (second, ("look", "write")), (second, ("look", "look"))):
        await held.queue.execute("delete from agent.step")
        for nth, name in enumerate(names, 1):
            event = first if nth == 1 else run
            await engine.store_step(
                event.id, 1, name, nth if name == "look" else 1, f"hash {nth}", f'"{nth}"', "[]", timedelta(0)
            )
        stored = await engine.read_steps(first.id)
        assert (stored[0].result, stored[0].arguments) == ('"1"', "hash 1")
        await held.swap("step", column, "(event_id, name, nth)::text")
        with pytest.raises(DamagedError):
            await engine.read_steps(first.id)


async def test_signals_open_for_their_own_and_a_failed_step_that_is_offered_again(held: Held) -> None:
    queue, jobs, engine = held.queue, held.jobs, held.engine
    first, second = await held.two_runs()
    for run in (first, second):
        assert await jobs.signal_id(run.id, "said", {"to": run.id}) == "sent"
    await held.swap("signal", "value")
    with pytest.raises(DamagedError):
        await engine.take_signal(first.id, 1, "said", 1, None)
    await queue.execute("delete from agent.signal; delete from agent.step")
    # One by a key knows no id: it opens for any event that waits under this name.
    for name in ("said", "written"):
        assert await jobs.signal(str(first.id), name, {"name": name}) == "sent"
    answer, signal = await engine.take_signal(first.id, 1, "said", 1, None)
    assert (answer, json.loads(signal or "")["value"]) == ("done", {"name": "said"})
    (waited,) = await engine.read_steps(first.id)
    assert json.loads(waited.result or "")["value"] == {"name": "said"}
    await queue.execute("update agent.step set name = 'written'")
    with pytest.raises(DamagedError):
        await engine.read_steps(first.id)
    run, _ = await held.two_runs()
    error = json.dumps([{"type": "ValueError", "message": SECRET}])
    await held.engine.store_step(run.id, 1, "charge", 1, "hash", None, error, timedelta(0))
    assert await held.engine.offer_step(run.id, 1, "charge", 1, "a token") is Settled.DONE
    (step,) = await held.engine.read_steps(run.id)
    assert (step.arguments, step.done, step.tried["tries"]) == ("hash", False, 1)
    assert step.tried["error"]["message"] == SECRET


async def test_replays_open_the_steps_and_signals_that_they_keep_and_no_others(held: Held) -> None:
    engine = held.engine
    first, other = await held.two_runs()
    error = json.dumps([{"type": "ValueError", "message": SECRET}])
    identity = first.id
    for nth in range(1, 4):  # the event, its replay, and a replay of that one
        await engine.store_step(identity, 1, f"step {nth}", 1, "hash", str(nth), error, timedelta(0))
        await engine.store_step(identity, 1, "last", 1, None, "0", "[]", timedelta(0))
        await engine.send_signal(identity, f"said {nth}", str(nth), once=False, by="U1")
        await engine.settle([(identity, 1, "complete", None)])
        new = await held.operations.rerun_as_new(identity, from_step="last")
        (event,) = await held.claim("note")
        identity = event.id
        assert identity == new.id
        kept = {step.name: step.result for step in await engine.read_steps(identity)}
        assert kept == {f"step {each}": str(each) for each in range(1, nth + 1)}
    for nth in range(1, 4):
        answer, signal = await engine.take_signal(identity, 1, f"said {nth}", 1, None)
        assert (answer, json.loads(signal or "")["value"]) == ("done", nth)
    steps = (await held.shown(identity))["steps"]
    said = {step["name"]: step["errors"][0]["message"] for step in steps if step.get("errors")}
    assert said == {f"step {each}": SECRET for each in range(1, 4)}
    await held.queue.execute("update agent.step set event_id = $1 where event_id = $2", other.id, first.id)
    with pytest.raises(DamagedError):
        await engine.read_steps(other.id)

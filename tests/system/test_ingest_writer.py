"""Events share commits without waiting, and no event fails or delays another."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from surelane.calls import Connection
from surelane_ingest import writer
from tests.databases import as_role
from tests.processes import until
from tests.scenario import eventually
from tests.system.ingest_client import Served, event_id, mention, served, signed

WAITS = "select exists (select from pg_locks where locktype = 'transactionid' and not granted)"


@pytest.fixture
async def service(database: str) -> AsyncIterator[Served]:
    async with served(as_role(database, "surelane_ingest"), database_budget="10s") as running:
        yield running


async def test_requests_that_come_together_share_commits(service: Served, connection: Connection) -> None:
    await service.slack.event(mention())
    answers = await asyncio.gather(*(service.slack.event(mention(channel=f"C{n}")) for n in range(100)))
    assert {answer.status for answer in answers} == {200}
    transactions = await connection.fetchval("select count(distinct xmin::text) from agent.event")
    assert transactions < 80


async def test_a_lone_request_waits_for_nothing(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first flusher has no patience. With the patience of the second one, the answer would be 503."""
    monkeypatch.setattr(writer, "_PATIENCE", 1000.0)
    async with served(as_role(database, "surelane_ingest")) as running:
        assert (await running.slack.event(mention())).status == 200


async def test_a_blocked_event_holds_up_no_other(service: Served, connection: Connection) -> None:
    assert (await service.slack.event(mention())).status == 200  # the first of a kind also registers the kind
    blocked = mention(channel="C-blocked")
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("select agent.insert_event(($1::text)::jsonb)", json.dumps(blocked))
    first = asyncio.create_task(service.slack.event(blocked))
    await eventually(lambda: connection.fetchval(WAITS), expected=True, within=60, every=0.02)
    async with asyncio.timeout(60):  # the transaction ends only after all answers
        others = await asyncio.gather(*(service.slack.event(mention(channel=f"C{n}")) for n in range(30)))
        answer = await first
    assert {other.status for other in others} == {200}
    assert answer.status == 503
    assert not answer.no_retry
    await transaction.commit()
    assert (await service.slack.event(blocked)).status == 200
    assert await connection.fetchval("select count(*) from agent.event") == 32


TRIGGER = """
create function public.refuse() returns trigger language plpgsql as $$ begin
    if new.event #>> '{{event,text}}' {when} then
        raise exception sqlstate '{sqlstate}' using message = 'says another'; end if;
    return new; end $$;
create trigger of_others before insert on agent.event for each row execute function public.refuse()
"""
OTHERS = {
    "check": "alter table agent.event add constraint no_poison check (event #>> '{event,text}' <> 'poison')",
    "index": "create index of_others on agent.event (((event #>> '{event,number}')::int4))",
    "domain": "alter table agent.event add column of_others varchar(3)"
    " generated always as (event #>> '{event,number}') stored",
}


@pytest.mark.parametrize("case", [*OTHERS, "22023", "22P02", "54000", "P0001", "XX002"])
async def test_what_others_refuse_of_an_event_is_not_its_fault_and_fails_no_other(
    service: Served, connection: Connection, case: str
) -> None:
    """A constraint, a trigger or an index of others is mended later: Slack sends the event again."""
    assert (await service.slack.event(mention())).status == 200  # else all wait for who registers the kind
    statement = OTHERS.get(case) or TRIGGER.format(sqlstate=case, when="= 'poison'")
    await connection.execute(statement)
    bad = mention(channel="C7", text="poison", number="no number")
    others = [mention(channel=f"C{n}", text="ok") for n in range(6)]
    with capture_logs() as logs:
        answers = await asyncio.gather(*(service.slack.event(each) for each in (bad, *others)))
    assert (answers[0].status, answers[0].no_retry) == (503, False)
    assert "Retry-After" in answers[0].headers
    assert {answer.status for answer in answers[1:]} == {200}
    (line,) = [line for line in logs if line["event"] == "the database refuses an event and takes others"]
    known = {"check": "23514", "index": "22P02", "domain": "22001"}
    assert line["sqlstate"] == known.get(case, case)
    assert line["call"] == "agent.insert_events"
    assert await connection.fetchval("select count(*) from agent.event") == 7


@pytest.mark.parametrize("sqlstate", ["22P05", "25006", "42501", "54001", "58030", "23505"])
async def test_what_the_database_refuses_of_every_event_is_an_outage_with_its_reason(
    service: Served, connection: Connection, sqlstate: str
) -> None:
    await connection.execute(TRIGGER.format(sqlstate=sqlstate, when="is not null"))
    answer = await service.slack.event(mention())
    assert (answer.status, answer.no_retry) == (503, False)
    async with service.slack.session.get(service.private_url + "/readyz") as probe:
        why = await probe.text()
    # What a read-only database says needs no second question.
    call = "agent.insert_events" if sqlstate == "25006" else "agent.takes_events"
    for told in ("does not take events", sqlstate, "says another", "public.refuse", call):
        assert told in why
    await connection.execute("drop trigger of_others on agent.event")
    assert (await service.slack.event(mention())).status == 200


async def test_the_buffer_is_bounded_and_what_is_beyond_it_is_refused_at_once(
    database: str, connection: Connection
) -> None:
    async with served(as_role(database, "surelane_ingest"), buffer=5, database_budget="5s") as running:
        async with connection.transaction():
            await connection.execute("lock table agent.event in access exclusive mode")
            async with asyncio.timeout(60):
                asked = [asyncio.create_task(running.slack.event(mention())) for _ in range(60)]
                answers = [await answer for answer in asyncio.as_completed(asked)]
        assert {answer.status for answer in answers} == {503}
        # They come before those that wait for the database.
        assert all(b"too many" in answer.body for answer in answers[:31])
        assert (await running.slack.event(mention())).status == 200


async def test_bodies_are_bounded_together(database: str) -> None:
    async with served(
        as_role(database, "surelane_ingest"), max_body="64KiB", body_memory="128KiB"
    ) as running:
        release = asyncio.Event()

        async def halted() -> AsyncIterator[bytes]:
            yield b"{" * 48_000
            await release.wait()
            yield b"}"

        async def upload() -> int:
            headers = {"Content-Type": "application/json", **signed(b"another body")}
            async with running.slack.session.post(
                running.url + "/slack/events", data=halted(), headers=headers
            ) as response:
                return response.status

        uploads = [asyncio.create_task(upload()) for _ in range(2)]
        await until(lambda: running.ingest.bodies.held_bytes == 96_000, what="two bodies being read")
        answer = await running.slack.event(mention(text="x" * 40_000))
        assert answer.status == 503
        assert (await running.slack.event(mention())).status == 200
        release.set()
        assert await asyncio.gather(*uploads) == [401, 401]
        assert running.ingest.bodies.held_bytes == 0
        assert (await running.slack.event(mention())).status == 200


async def test_a_client_that_goes_away_harms_nobody(service: Served, connection: Connection) -> None:
    gone = event_id()
    async with connection.transaction():
        await connection.execute("lock table agent.event in access exclusive mode")
        leaving = [asyncio.create_task(service.slack.event(mention(gone, channel=f"C{n}"))) for n in range(5)]
        await until(lambda: service.ingest.bodies.held_bytes, what="a request")
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
    assert (await service.slack.event(mention())).status == 200
    assert (await service.slack.event(mention(gone))).status == 200
    assert await connection.fetchval("select count(*) from agent.event") == 2

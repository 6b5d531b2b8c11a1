"""Installations keep their tokens sealed, and slack-sdk's stores find the right ones."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from slack_sdk.oauth.installation_store import Installation

from surelane.calls import Connection
from surelane.codec import SealedError
from surelane_bolt.installation_store import AsyncInstallations, SyncInstallations
from surelane_encryption.keys import Keyring, new_key
from surelane_service.installations import BOT, Expiring, Installations, Owner
from tests.databases import Server
from tests.sql.conftest import Connect
from tests.sql.queue_steps import locked

OLD, NEW = new_key(), new_key()
SECRETS = ("xoxb-secret-bot", "xoxe-1-secret-refresh", "xoxp-secret-user", "https://hooks.example/secret")
WORKSPACE: dict[str, Any] = {"enterprise_id": None, "team_id": "T1"}


def installation(team: str | None = "T1", user: str = "U1", **changes: Any) -> Installation:
    values: dict[str, Any] = {
        "app_id": "A1",
        "enterprise_id": None,
        "team_id": team,
        "team_name": "Acme",
        "bot_token": SECRETS[0],
        "bot_id": "B1",
        "bot_user_id": "UB",
        "bot_scopes": "chat:write,commands",
        "bot_refresh_token": SECRETS[1],
        "bot_token_expires_in": 43200,
        "user_id": user,
        "user_token": SECRETS[2],
        "user_scopes": "search:read",
        "incoming_webhook_url": SECRETS[3],
        "incoming_webhook_channel": "#general",
        "custom_values": {"plan": "gold"},
    }
    return Installation(**(values | changes))


def kept(connection: Connection, *keys: str) -> Installations:
    return Installations(connection, Keyring(keys or (NEW,)))


def store(connection: Connection, *keys: str) -> AsyncInstallations:
    return AsyncInstallations(kept(connection, *keys))


async def found(connection: Connection, user: str | None = None) -> Installation:
    installed = await store(connection).async_find_installation(**WORKSPACE, user_id=user)
    assert installed is not None
    return installed


async def test_an_installation_is_found_as_saved_by_workspace_and_person(service: Connection) -> None:
    saved = installation()
    await store(service).async_save(saved)
    expected = saved.to_dict() | {"bot_refresh_token": None, "installed_at": 0}
    assert (await found(service)).to_dict() | {"installed_at": 0} == expected
    bot = await store(service).async_find_bot(**WORKSPACE)
    assert bot is not None
    assert (bot.bot_token, bot.bot_user_id, bot.bot_scopes) == (SECRETS[0], "UB", ["chat:write", "commands"])
    await store(service).async_save(installation(user="U2", user_token="xoxp-two", bot_token="xoxb-new"))
    first, latest = await found(service, "U1"), await found(service)
    assert (first.user_token, first.bot_token) == (SECRETS[2], "xoxb-new")
    assert (latest.user_id, latest.user_token) == ("U2", "xoxp-two")
    assert await store(service).async_find_installation(**WORKSPACE, user_id="U3") is None
    await store(service).async_save(installation(user="U4", bot_token=None, user_token="xoxp-four"))
    alone = await found(service, "U4")
    assert (alone.bot_token, alone.user_token) == ("xoxb-new", "xoxp-four"), "it keeps the bot"


async def test_a_grid_wide_installation_is_no_workspaces(service: Connection) -> None:
    await store(service).async_save(installation(None, enterprise_id="E1", is_enterprise_install=True))
    await store(service).async_save(installation("T1", enterprise_id="E1", bot_token="xoxb-one"))
    find = store(service).async_find_bot
    wide = await find(enterprise_id="E1", team_id="T9", is_enterprise_install=True)
    one = await find(enterprise_id="E1", team_id="T1", is_enterprise_install=False)
    bots = [(bot.bot_token, bot.is_enterprise_install) for bot in (wide, one) if bot]
    assert bots == [(SECRETS[0], True), ("xoxb-one", False)]
    assert await find(enterprise_id="E1", team_id="T9", is_enterprise_install=False) is None
    assert await find(enterprise_id="E2", team_id="T1", is_enterprise_install=True) is None
    assert await find(enterprise_id=None, team_id=None) is None
    await store(service).async_delete_all(enterprise_id="E1", team_id=None)
    assert await find(enterprise_id="E1", team_id="T9", is_enterprise_install=True) is None
    assert await find(enterprise_id="E1", team_id="T1") is not None


async def test_deleting_takes_the_bot_a_person_or_all(service: Connection) -> None:
    await store(service).async_save(installation())
    await store(service).async_save(installation(user="U2"))
    await store(service).async_delete_installation(**WORKSPACE, user_id="U2")
    assert set(await kept(service).find(Owner("T1"), "U2")) == {BOT}
    await store(service).async_delete_bot(**WORKSPACE)
    assert set(await kept(service).find(Owner("T1"))) == {"U1"}
    await store(service).async_delete_all(**WORKSPACE)
    assert await kept(service).find(Owner("T1")) == {}
    await store(service).async_save(installation())
    at = (await kept(service).find(Owner("T1")))[BOT].installed_at
    late = at - timedelta(seconds=1)
    assert await kept(service).delete(Owner("T1"), until=late) == 0, "a late report keeps a newer one"
    assert await kept(service).delete(Owner("T1"), until=at) == 2


async def test_a_synchronous_store_calls_the_other_one(service: Connection) -> None:
    loop = asyncio.get_running_loop()

    def wait(call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, loop).result()

    calls = SyncInstallations(store(service), wait)

    def use() -> list[Any]:
        calls.save(installation())
        found = [calls.find_bot(**WORKSPACE), calls.find_installation(**WORKSPACE, user_id="U1")]
        calls.delete_installation(**WORKSPACE, user_id="U1")
        calls.delete_bot(**WORKSPACE)
        calls.delete_all(**WORKSPACE)
        return [*found, calls.find_bot(**WORKSPACE)]

    bot, person, gone = await asyncio.to_thread(use)
    assert (bot.bot_token, person.user_token, gone) == (SECRETS[0], SECRETS[2], None)


async def test_a_row_copied_from_another_workspace_stays_shut(queue: Connection, service: Connection) -> None:
    await store(service).async_save(installation("T1"))
    await store(service).async_save(installation("T2"))
    await queue.execute(
        "update agent.installation as i set sealed = other.sealed from agent.installation as other"
        " where i.owner_id = 'T2' and other.owner_id = 'T1' and i.user_id = other.user_id"
    )
    with pytest.raises(SealedError):
        await store(service).async_find_bot(enterprise_id=None, team_id="T2")
    await store(service).async_save_bot(installation("T2").to_bot())
    rows = await kept(service).find(Owner("T2"))
    assert list(rows) == [BOT], "a person's row that no key opens stops no bot"
    with pytest.raises(SealedError):
        await kept(service).find(Owner("T2"), installation("T2").user_id)


async def test_dump_log_of_writes_and_values_hold_no_plain_token(
    server: Server, queue: Connection, service: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    began = await queue.fetchval("select pg_current_wal_lsn()::text")
    await store(service).async_save(installation())
    row = next(iter((await kept(service).find(Owner("T1"))).values()))
    await service.execute("select agent.use_oauth_state($1, now())", b"state")
    name = await queue.fetchval("select current_database()")
    admin = await asyncpg.connect(server.admin, database=name)
    try:
        await admin.execute("checkpoint")
        dumped = str(await admin.fetch("select to_jsonb(i) from agent.installation as i"))
        held = await admin.fetch(
            "with files as (select pg_read_binary_file('pg_wal/' || name) as content from pg_ls_waldir()"
            " where name between pg_walfile_name($3::text::pg_lsn) and pg_walfile_name(pg_current_wal_lsn())"
            " union all select pg_read_binary_file(pg_relation_filepath('agent.installation')))"
            " select secret, kind from unnest($1::text[], $2::text[]) as s (secret, kind)"
            " where exists (select from files where position(convert_to(secret, 'UTF8') in content) > 0)",
            [*SECRETS, "Acme"],
            [*(["secret"] * len(SECRETS)), "found"],
            began,
        )
    finally:
        await admin.close()
    assert [tuple(row) for row in held] == [("Acme", "found")]  # the search does find what is stored plainly
    printed = capfd.readouterr()
    for secret in SECRETS:
        assert secret not in dumped + repr(row) + str(row) + printed.out + printed.err


async def test_a_state_is_used_once_and_forgotten_in_the_end(queue: Connection, service: Connection) -> None:
    use = "select agent.use_oauth_state($1, now() + $2::text::interval)"
    assert [await service.fetchval(use, b"a", "10 minutes") for _ in range(2)] == [True, False]
    assert await service.fetchval(use, b"b", "-2 hours")
    assert await service.fetchval(use, b"c", "0")
    ids = await queue.fetchval("select array_agg(id order by id) from agent.used_id")
    assert ids == [f"oauth {state.hex()}" for state in (b"a", b"c")]


async def test_one_process_renews_a_token(service: Connection, connect: Connect, queue: Connection) -> None:
    await store(service).async_save(installation())
    installations, other = kept(service), kept(await connect("surelane_worker"))
    assert await installations.expiring(timedelta(hours=11)) == []
    (row,) = await installations.expiring(timedelta(hours=13))
    assert not any("token" in name for name in Expiring.__slots__)
    minute = timedelta(minutes=1)
    begun = await installations.begin_refresh(row, minute)
    assert begun is not None
    assert await other.begin_refresh(row, minute) is None
    tokens, version = begun
    assert await other.begin_refresh(replace(row, version=version), minute) is None, "it is being refreshed"
    assert tokens["bot_refresh_token"] == SECRETS[1]
    assert await installations.expiring(timedelta(hours=13)) == []
    assert await installations.end_refresh(row, version, tokens | {"bot_token": "xoxb-fresh"}, None)
    fresh = (await other.find(Owner("T1")))[BOT]
    assert (fresh.token, fresh.expires_at) == ("xoxb-fresh", None)
    assert fresh.values["bot_refresh_token"] == SECRETS[1]
    assert await other.begin_refresh(row, minute) is None  # it has changed since
    await store(service).async_save(installation())
    (row,) = await kept(service).expiring(timedelta(hours=13))
    assert await kept(service).begin_refresh(row, timedelta(seconds=30)) is not None
    await queue.execute("update agent.test_clock set shift = '31 seconds'")
    (again,) = await kept(service).expiring(timedelta(hours=13))
    assert await kept(service).begin_refresh(again, timedelta(seconds=30)) is not None


async def test_an_account_at_a_server_is_added_once_and_is_none_of_slacks(
    service: Connection, connect: Connect
) -> None:
    owner, workers = Owner.at("docs", "T1"), kept(await connect("surelane_worker"))
    for _ in range(2):
        await workers.add_account(owner, "U1")
    (row,) = (await kept(service).find(owner, "U1")).values()
    begun = await workers.begin_refresh(row, timedelta(minutes=1))
    assert begun is not None
    assert begun[0] == {}
    await workers.add_account(owner, "U1")  # as another worker does
    soon = datetime.now(UTC) + timedelta(minutes=1)
    assert await kept(service).end_refresh(row, begun[1], {"user_token": "token"}, soon)
    assert (await workers.find(owner, "U1"))["U1"].token == "token"
    assert (await workers.find(Owner("T1"), "U1"), await workers.find(Owner.at("other", "T1"), "U1")) == (
        {},
        {},
    )
    assert await workers.expiring(timedelta(hours=1)) == []


@pytest.mark.parametrize("what", ["deleted", "installed anew"])
async def test_a_refresh_brings_no_token_back(service: Connection, what: str) -> None:
    installations = kept(service)
    await store(service).async_save(installation())
    (row,) = await installations.expiring(timedelta(hours=13))
    begun = await installations.begin_refresh(row, timedelta(minutes=1))
    assert begun is not None
    if what == "deleted":
        await installations.delete(Owner("T1"))
    else:
        await installations.save(installation(bot_token="xoxb-anew"))
    assert not await installations.end_refresh(row, begun[1], {"bot_token": "xoxb-late"}, None)
    bot = (await installations.find(Owner("T1"))).get(BOT)
    assert (bot and bot.token) == (None if what == "deleted" else "xoxb-anew")


UNTIL = datetime(2100, 1, 1, tzinfo=UTC)


async def waiting_event(queue: Connection, service: Connection, team: str, nth: int) -> int:
    """Store an event that waits for its workspace to install the app, as a worker puts it off."""
    event: int = await queue.fetchval(
        "select agent.enqueue('turn', '{}', _run_at => agent.clock() + interval '30 s', _group_key => $1)",
        f"{team}:{nth}",
    )
    assert not await kept(service).await_one(event, Owner(team), UNTIL)
    assert not await kept(service).await_one(event, Owner(team), UNTIL)  # put off again
    return event


async def test_an_install_shows_what_waits_and_wakes_workers(queue: Connection, connect: Connect) -> None:
    worker = await connect("surelane_worker")
    mine, others = [await waiting_event(queue, worker, team, 1) for team in ("T1", "T2")]
    held = await waiting_event(queue, worker, "T1", 2)
    why = "select (agent.why_waiting($1)).reason"
    assert await queue.fetchval(why, mine) == "not_installed"
    heard: asyncio.Queue[str] = asyncio.Queue()
    await worker.add_listener("agent_event", lambda *message: heard.put_nowait(message[-1]))
    foreign, ingest = await connect(), kept(await connect("surelane_ingest"))
    async with locked(foreign, held):
        await ingest.save(installation("T1"))  # waits for no event
    async with asyncio.timeout(60):
        assert await heard.get() == ""
    visible = await queue.fetch("select id from agent.event where vt <= agent.clock()")
    assert [row["id"] for row in visible] == [mine]
    assert await queue.fetchval(why, mine) == "no_worker"
    assert await queue.fetchval(why, others) == "not_installed"
    assert await queue.fetchval(why, held) != "not_installed"
    assert await kept(worker).await_one(held, Owner("T1"), UNTIL)
    await kept(worker).await_one(held, Owner("T3"), datetime(2020, 1, 1, tzinfo=UTC))
    await waiting_event(queue, worker, "T4", 1)
    owners = "select array_agg(owner_id order by owner_id) from agent.install_wait"
    assert await queue.fetchval(owners) == ["T2", "T4"], "those whose time is up are forgotten"


async def test_another_reporter_is_found_while_it_has_the_app(queue: Connection, connect: Connect) -> None:
    ingest = kept(await connect("surelane_ingest"))
    ended, live = [await queue.fetchval("select agent.enqueue('turn')") for _ in range(2)]
    noted = "select array_agg(event_id order by event_id) from agent.other_report"
    for event in (ended, live):
        await ingest.note_report(event, Owner("T2"))
    await queue.execute("select agent.delete_event($1)", ended)
    await ingest.note_report(ended, Owner("T3"))  # has ended already
    assert await queue.fetchval(noted) == [ended, live]
    await queue.execute("update agent.test_clock set shift = interval '2 hours'")
    await ingest.note_report(live, Owner("T3"))
    assert await queue.fetchval(noted) == [live, live]
    worker = kept(await connect("surelane_worker"))
    event = await queue.fetchval("select agent.enqueue('turn')")
    grid = Owner("E1", enterprise_wide=True)
    for reporter in (Owner("T2"), grid, Owner("T2")):  # Slack repeats one
        await ingest.note_report(event, reporter)
    assert await worker.other_reporter(event) is None  # neither has the app
    await ingest.save(installation(None, enterprise_id="E1", is_enterprise_install=True))
    assert await worker.other_reporter(event) == grid
    await ingest.save(installation("T2"))
    assert await worker.other_reporter(event) == Owner("T2")  # reported first
    await ingest.delete(Owner("T2"), [BOT])
    assert await worker.other_reporter(event) == grid
    assert await worker.other_reporter(event + 1) is None


async def test_a_connected_account_wakes_its_persons_turns_alone(queue: Connection, connect: Connect) -> None:
    worker, ingest = await connect("surelane_worker"), await connect("surelane_ingest")
    foreign = await connect()
    turns = {}
    for nth, (name, user) in enumerate([("mine", "U1"), ("locked", "U1"), ("other", "U2"), ("app", "")]):
        turns[name] = await queue.fetchval(
            "select agent.enqueue('turn', '{}', _run_at => agent.clock() + interval '1 h', _group_key => $1)",
            str(nth),
        )
        assert not await kept(worker).await_one(turns[name], Owner("T1"), UNTIL, user)
    await queue.execute(
        "insert into agent.step (event_id, event_ts, name, nth, sort, attempt, started_at)"
        " select unnest($1::int8[]), agent.clock(), 'account', 1, 'wait', 1, agent.clock()",
        [*turns.values()],
    )
    async with locked(foreign, turns["locked"]):
        await kept(ingest).wake_connected("U1")
    await kept(ingest).wake_connected("")
    visible = await queue.fetch("select id from agent.event where vt <= agent.clock()")
    signals = await queue.fetch("select event_id, sent_by from agent.signal")
    assert [row["id"] for row in visible] == [turns["mine"]]
    assert [tuple(row) for row in signals] == [(turns["mine"], "U1")]
    await kept(ingest).save(installation("T1"))
    visible = await queue.fetch("select id from agent.event where vt <= agent.clock() order by id")
    assert [row["id"] for row in visible] == [turns["mine"], turns["app"]], "an install wakes no such turn"
    assert await kept(worker).await_one(turns["mine"], Owner("T1"), UNTIL, "U1")

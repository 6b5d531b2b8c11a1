"""A rotation of the keys loses nothing: it keeps what it replaces, and names and leaves what it cannot open."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from surelane.calls import Calls, Connection
from surelane.codec import NoKeyError
from surelane_encryption.command import KeyRotation
from surelane_encryption.data_keys import DataKeys
from surelane_encryption.keys import Keyring, new_key
from surelane_encryption.sealing import Sealing
from surelane_operator.cli.command import app
from surelane_service.installations import Owner
from tests.databases import as_role
from tests.sql.conftest import Connect
from tests.sql.test_erase import REFUSED
from tests.sql.test_installations import installation, kept, store

OLD, NEW = new_key(), new_key()
SEALED = (
    "select sealed, previous from agent.data_key union all select sealed, previous from agent.installation"
)

Rotate = Callable[[str], Any]


@pytest.fixture
def rotate(queue_database: str, monkeypatch: pytest.MonkeyPatch) -> Rotate:
    """Return what runs the command with a list of keys."""
    monkeypatch.setenv("DATABASE_URL", as_role(queue_database, "surelane_operator"))

    async def run(keys: str) -> Result:
        monkeypatch.setenv("SURELANE_ENCRYPTION_KEYS", keys)
        return await asyncio.to_thread(lambda: CliRunner().invoke(app, ["keys", "rotate", "--json"]))

    return run


async def test_what_no_key_opens_is_named(queue: Connection, service: Connection, rotate: Rotate) -> None:
    keys = Keyring([NEW])
    sound = await DataKeys(service, Keyring([OLD])).current("T1")
    ours = b"\x01" + keys.current_id + bytes(40)
    for workspace, garbage in (("T2", b"garbage"), ("T3", ours), ("T4", b"\x01" + bytes(48))):
        await queue.execute(
            "insert into agent.data_key (id, workspace, sealed) values ($1, $2, $3)",
            workspace.encode(),
            workspace,
            garbage,
        )
        with pytest.raises(NoKeyError):
            await DataKeys(service, keys).current(workspace)
    done = await rotate(f"{NEW},{OLD}")
    assert (done.exit_code, json.loads(done.stdout)["sealed"]) == (1, 1), done.output
    assert [name.split(":")[0] for name in json.loads(done.stdout)["lost"]] == [
        f"data key {team.encode().hex()} of workspace '{team}'" for team in ("T2", "T3", "T4")
    ]
    assert (await DataKeys(service, keys).current("T1")).raw == sound.raw
    made = [await DataKeys(service, keys).current(workspace) for workspace in ("T2", "T3", "T4")]
    assert [key.raw for key in made] == [
        (await DataKeys(service, keys).by_ids([key.id]))[key.id].raw for key in made
    ]
    assert await queue.fetchval("select count(*) from agent.data_key") == 7
    # An erasure destroys both keys of such a workspace.
    await queue.execute("select agent.retire_data_key('T2')")
    assert await queue.fetchval("select agent.destroy_data_keys('T2', '0')") == 2


async def test_keys_that_a_wrong_list_left_open_later(service: Connection, rotate: Rotate) -> None:
    first = await DataKeys(service, Keyring([OLD])).current("T1")
    assert (await rotate(NEW)).exit_code == 1
    second = await DataKeys(service, Keyring([NEW])).current("T1")
    assert second.id != first.id
    assert (await rotate(f"{NEW},{OLD}")).exit_code == 0
    keys = DataKeys(service, Keyring([NEW]))
    assert {key.raw for key in (await keys.by_ids([first.id, second.id])).values()} == {first.raw, second.raw}
    assert await keys.current("T1") == second


async def test_what_is_replaced_is_kept_until_the_new_value_was_opened(
    queue: Connection, service: Connection, rotate: Rotate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await DataKeys(service, Keyring([OLD])).current("T1")
    for nth in range(3):
        await store(service, OLD).async_save(installation(f"T{nth}"))
    account = Owner.at("docs", "T1")
    await kept(service, OLD).add_account(account, "U1")
    before = await queue.fetch(SEALED)
    for _ in range(2):
        await queue.execute("select agent.seal_data_key(id, sealed, 'garbage') from agent.data_key")
        await queue.execute(
            "select agent.seal_installation(owner_id, enterprise_wide, user_id, sealed, 'garbage')"
            " from agent.installation"
        )
    assert [row["previous"] for row in await queue.fetch(SEALED)] == [row["sealed"] for row in before]
    monkeypatch.setattr("surelane_encryption.command.BATCH", 2)
    for sealed in (len(before), 0):
        done = await rotate(f"{NEW},{OLD}")
        assert (done.exit_code, json.loads(done.stdout)) == (0, {"sealed": sealed, "lost": {}}), done.output
    after = [(row["sealed"][1:9], row["previous"]) for row in await queue.fetch(SEALED)]
    assert after == [(Keyring([NEW]).current_id, None)] * len(before) != []
    assert (await store(service, NEW).async_find_bot(enterprise_id=None, team_id="T1")) is not None
    assert "U1" in await kept(service, NEW).find(account, "U1")
    lost = await rotate(OLD)
    assert (lost.exit_code, "which SURELANE_ENCRYPTION_KEYS lacks" in lost.stderr) == (1, True)
    assert [(await rotate(keys)).exit_code for keys in ("wrong", "")] == [2, 2]


async def test_new_tokens_forget_those_before_them(queue: Connection, service: Connection) -> None:
    await store(service, OLD).async_save(installation("T1"))
    await queue.execute(
        "select agent.seal_installation(owner_id, enterprise_wide, user_id, sealed, 'x')"
        " from agent.installation"
    )
    await store(service, OLD).async_save(installation("T1"))
    assert {row["previous"] for row in await queue.fetch(SEALED)} == {None}


async def test_a_program_that_finds_no_key_is_told_who_makes_it(queue: Connection, connect: Connect) -> None:
    producer = await connect("surelane_producer")
    with pytest.raises(NoKeyError, match="workspace 'T1' has no data key yet, and this role makes none"):
        await DataKeys(producer, Keyring([NEW])).current("T1")
    made = await DataKeys(queue, Keyring([NEW])).current("T1")
    assert (await DataKeys(producer, Keyring([NEW])).current("T1")).raw == made.raw
    with pytest.raises(Exception, match="permission denied"):
        await KeyRotation(Keyring([OLD, NEW])).run(Calls(await connect("surelane_ingest")))


async def test_a_row_that_refuses_stops_no_other(
    queue: Connection, service: Connection, rotate: Rotate
) -> None:
    first, second = [await DataKeys(service, Keyring([OLD])).current(team) for team in ("T1", "T2")]
    await queue.execute(REFUSED.replace("keep", "T1"))
    await queue.execute(
        "create trigger theirs before update on agent.data_key for each row execute function public.refuse()"
    )
    try:
        done = await rotate(f"{NEW},{OLD}")
    finally:
        await queue.execute("drop function public.refuse() cascade")
    lost = json.loads(done.stdout[done.stdout.index("{") :])["lost"]  # behind the server's log
    assert (done.exit_code, len(lost), first.id.hex() in str(lost)) == (1, 1, True)
    assert (await DataKeys(service, Keyring([NEW])).current("T2")).raw == second.raw
    assert (await rotate(f"{NEW},{OLD}")).exit_code == 0
    assert (await DataKeys(service, Keyring([NEW])).current("T1")).raw == first.raw


async def test_a_key_that_cannot_be_opened_keeps_its_workspaces_events_alone(service: Connection) -> None:
    bad, good = [
        json.loads((await Sealing(DataKeys(service, Keyring([key])), on=True).seal_event(text, None))[0])
        for key, text in ((OLD, '{"team_id": "T1"}'), (NEW, '{"team_id": "T2"}'))
    ]
    sealing = Sealing(DataKeys(service, Keyring([NEW])), on=True)
    shown = [await sealing.show(each) for each in (bad, good, bad)]
    assert [each.get("surelane.sealed", "open")[:20] for each in shown] == [
        "cannot be decrypted:",
        "open",
        "cannot be decrypted:",
    ]
    with pytest.raises(NoKeyError, match="cannot be opened"):
        await sealing.ready("T1")
    await sealing.ready("T2")

"""The worker's duty drops old history, and ``surelane doctor`` says so. ``surelane erase`` leaves a receipt."""

import asyncio
import json
import socket
from datetime import timedelta
from unittest.mock import Mock

import pytest

from surelane.calls import Connection
from surelane_service.engine import Engine
from surelane_worker import duties
from surelane_worker.duties import Retention
from tests.databases import as_role
from tests.sql.migrations import becomes, connected
from tests.sql.test_erase import REFUSED
from tests.system.test_cli import Command, connection, surelane
from tests.system.test_doctor import Examine, findings

__all__ = ["connection", "findings", "surelane"]

OLD = """
with stored as (
    insert into agent.event (event_ts, kind, event)
    select now() - interval '1 day' * days, 'job', '{"user": "U7"}' from unnest($1::int4[]) as days returning id
)
select id from stored
"""


async def old(connection: Connection, *days: int) -> None:
    """Put events into history that happened so many days ago."""
    for row in await connection.fetch(OLD, days):
        await connection.execute("select agent.delete_event($1)", row["id"])


async def kept(connection: Connection) -> list[int]:
    """Return for how many days history has its events."""
    ages = "select extract(day from now() - event_ts)::int as age from agent.event_hist order by age"
    return [row["age"] for row in await connection.fetch(ages)]


async def test_the_leading_worker_drops_what_is_older_and_the_doctor_says_so(
    database: str, findings: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def told() -> str:
        (found,) = await findings("history")
        return f"{found.level}: {found.found}"

    monkeypatch.setattr(duties, "FIRST", timedelta(0))
    async with (
        connected(database) as owner,
        connected(as_role(database, "surelane_worker")) as worker,
    ):
        await old(owner, 1, 20, 200)
        assert (await told()).startswith("ok: no worker has dropped old history yet")
        ages, leading = timedelta(days=90), (lambda: False, lambda: True)
        runs = [asyncio.create_task(Retention(Engine(worker), leads, ages).run()) for leads in leading]
        await becomes(owner, "select exists (select from agent.retention where done_at is not null)")
        for run in runs:
            run.cancel()
        await asyncio.wait(runs)
        assert await kept(owner) == [1, 20]
        assert (await told()).startswith("ok: history is kept for 90 d; a worker dropped")
        await owner.execute("update agent.retention set blocked_at = now() - interval '2 hours'")
        assert (await told()).startswith("warning: history is kept for 90 d, but another transaction")


async def test_erasing_counts_first_then_leaves_a_receipt_without_the_id(
    surelane: Command, connection: Connection
) -> None:
    await connection.execute("delete from agent.erasure")
    await old(connection, 1, 2)
    await connection.execute("select agent.enqueue('mail', '{\"user\": \"U7\"}')")

    counted = await surelane("erase", "--user", "U7")
    assert "would remove: 1 live events, 2 events in history" in counted.out
    assert await kept(connection) == [1, 2]
    assert (await surelane("erase", "--user", "U7", "--dry-run", "--json")).json["erased"] is False

    erased = await surelane("--as", "ann", "erase", "--user", "U7", "--yes", "--json")
    assert erased.json["counts"]["event_hist"] == 3
    key = erased.json["key"]
    assert await kept(connection) == []
    listed = await surelane("erase", "--receipts", "--json")
    (receipt,) = listed.json
    assert (receipt["asked_by"], receipt["removed"]) == ("ann", "1 cancelled before, 3 events in history")
    assert "U7" not in listed.out + erased.out
    assert key not in listed.out
    hashed = await connection.fetchval("select agent.hashed($1, $2)", '{"user": "U7"}', key)
    assert json.loads(hashed) == receipt["filter"]
    assert "ann" in (await surelane("erase", "--receipts")).out
    (action,) = (await surelane("actions", "--json")).json
    assert (action["who"], action["action"], action["target"]) == ("ann", "erase", f"erasure {receipt['id']}")
    assert action["result"]["removed"]["event_hist"] == 3
    assert "U7" not in json.dumps(action)


async def test_what_cannot_be_erased_is_named_with_an_exit_code_and_goes_another_time(
    surelane: Command, connection: Connection
) -> None:
    await old(connection, 1, 2)
    last = await connection.fetchval("select max(id) from agent.event_hist")
    await connection.execute(REFUSED.replace("keep", f"[(]{last},"))
    await connection.execute(
        "create trigger theirs before delete on agent.event_hist for each row execute function public.refuse()"
    )
    try:
        asked = await surelane("erase", "--user", "U7", "--yes")
        assert (asked.code, "1 events in history" in asked.out) == (1, True)
        assert f"left: event {last} (SQLSTATE 23514): repeat the command" in asked.err
        assert f"event {last}" in (await surelane("erase", "--receipts")).out
    finally:
        await connection.execute("drop function public.refuse() cascade")
    assert await kept(connection) == [2]
    async with connection.transaction():
        await connection.execute("select from agent.event_hist for update")
        asked = await surelane("erase", "--user", "U7", "--yes")
        assert f"left: event {last} (locked)" in asked.err
    again = await surelane("erase", "--user", "U7", "--yes", "--json")
    assert again.json["erased"] is True
    assert "left" not in again.json["counts"]


async def test_an_erasure_in_a_container_whose_user_has_no_name_is_done(
    surelane: Command, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", Mock(side_effect=OSError("No username set in the environment")))
    await connection.execute("select agent.enqueue('mail', '{\"user\": \"U7\"}')")
    erased = (await surelane("erase", "--user", "U7", "--yes", "--json")).json
    assert erased["counts"]["event_hist"] == 1
    assert erased["asked_by"] == f"unknown@{socket.gethostname()}"

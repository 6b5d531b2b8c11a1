"""What belongs to a workspace or an organization that removed the app is erased after a grace, and not before."""

import json
from datetime import timedelta

import pytest

from surelane.calls import Connection
from surelane_encryption.keys import Keyring
from surelane_service.engine import Engine
from surelane_service.installations import Installations, Owner
from surelane_worker.duties import Uninstalls
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import pair
from tests.sql.test_erase import REFUSED
from tests.sql.test_installations import NEW, installation

GRACE = timedelta(days=30)
T1, T2, GRID = Owner("T1"), Owner("T2"), Owner("E1", enterprise_wide=True)


class Fleet:
    """Two workers with the duty, and ingest's installations."""

    def __init__(self, queue: Connection, worker: Connection, ingest: Connection) -> None:
        self.queue = queue
        self.installations = Installations(ingest, Keyring([NEW]))
        self._worker = worker

    async def store(self, team: str, enterprise: str | None = None) -> None:
        """Store two events of a workspace; one of them has ended."""
        for nth in range(2):
            ids = {"team_id": team, "enterprise_id": enterprise, "event_id": f"Ev{team}{nth}"}
            identity = await self.queue.fetchval(
                "select agent.insert_event($1)", json.dumps({"type": "message", **ids})
            )
        await self.queue.execute("select agent.delete_event($1)", identity)

    async def left(self) -> list[str]:
        """Return the workspaces that have events, live or in history."""
        rows = await self.queue.fetch(
            "select distinct event ->> 'team_id' as team from ("
            " select event from agent.event union all select event from agent.event_hist) as e order by 1"
        )
        return [row["team"] for row in rows]

    async def later(self, by: timedelta = GRACE) -> None:
        await self.queue.execute("update agent.test_clock set shift = shift + $1", by)

    async def erase(self, grace: timedelta = GRACE) -> bool:
        """Let a worker do one pass."""
        return await Uninstalls(Engine(self._worker), lambda: True, grace, "w1").pass_once()


@pytest.fixture
async def fleet(queue: Connection, connect: Connect) -> Fleet:
    return Fleet(queue, await connect("surelane_worker"), await connect("surelane_ingest"))


async def test_a_removed_workspace_leaves_a_receipt(fleet: Fleet, capfd: pytest.CaptureFixture[str]) -> None:
    for team in ("T1", "T2"):
        await fleet.installations.save(installation(team))
        await fleet.store(team)
        await Installations(fleet.queue, Keyring([NEW])).add_account(Owner.at("docs", team), "U1")
    await fleet.installations.delete(T1, [""])  # tokens_revoked comes first
    assert await fleet.installations.uninstall(T1, None) == 2  # a person's own, and one at a server
    assert await fleet.installations.uninstall(T1, None) == 0  # Slack says it again
    await fleet.later(GRACE - timedelta(minutes=1))
    await fleet.erase()
    assert await fleet.left() == ["T1", "T2"]
    await fleet.later(timedelta(minutes=2))
    assert not await fleet.erase()
    assert await fleet.left() == ["T2"]
    (receipt,) = await fleet.queue.fetch("select * from agent.erasure")
    assert receipt["asked_by"].startswith("worker w1, after an uninstall at ")
    assert "T1" not in str(dict(receipt))
    assert json.loads(receipt["counts"])["event_hist"] == 2
    assert receipt["finished_at"] is not None
    logged = capfd.readouterr().out
    assert '"T1"' in logged or "T1" in logged
    await fleet.store("T1")  # what comes later stays
    await fleet.erase()
    assert await fleet.left() == ["T1", "T2"]
    others = "select array_agg(owner_id order by 1) from agent.installation where owner_id like '% %'"
    assert await fleet.queue.fetchval(others) == ["T2 docs"]


async def test_an_install_within_the_grace_keeps_all(fleet: Fleet) -> None:
    await fleet.installations.save(installation("T1"))
    await fleet.store("T1")
    await fleet.installations.uninstall(T1, None)
    await fleet.later(timedelta(days=29))
    await fleet.installations.save(installation("T1"))
    await fleet.later()
    await fleet.erase()
    assert await fleet.left() == ["T1"]
    stored = (await fleet.installations.find(T1))[""]
    late = stored.installed_at - timedelta(seconds=1)
    assert await fleet.installations.uninstall(T1, None, late) == 0  # a late report
    await fleet.later()
    await fleet.erase()
    assert await fleet.left() == ["T1"]


async def test_an_organization_is_erased_once_none_of_its_workspaces_has_the_app(fleet: Fleet) -> None:
    await fleet.installations.save(installation(None, enterprise_id="E1", is_enterprise_install=True))
    await fleet.installations.save(installation("T1", enterprise_id="E1"))
    for team, enterprise in (("T1", "E1"), ("T2", "E1"), ("T3", None)):
        await fleet.store(team, enterprise)
    await fleet.installations.uninstall(GRID, "E1")
    await fleet.later()
    await fleet.erase()
    assert await fleet.left() == ["T1", "T2", "T3"]  # T1 still has the app
    await fleet.installations.uninstall(T1, "E1")
    await fleet.erase()
    assert await fleet.left() == ["T3"]


async def test_a_workspace_is_kept_while_its_organization_has_the_app(fleet: Fleet) -> None:
    await fleet.installations.save(installation(None, enterprise_id="E1", is_enterprise_install=True))
    await fleet.store("T1", "E1")
    await fleet.installations.uninstall(T1, "E1")
    await fleet.later()
    await fleet.erase()
    assert await fleet.left() == ["T1"]
    await fleet.installations.uninstall(GRID, "E1")  # the organization may come back within the grace
    await fleet.erase()
    assert await fleet.left() == ["T1"]
    await fleet.later()
    await fleet.erase()
    assert await fleet.left() == []


async def test_an_interrupted_erasure_goes_on_and_one_worker_does_it(fleet: Fleet, connect: Connect) -> None:
    await fleet.store("T1")
    await fleet.installations.uninstall(T1, None)
    await fleet.later()
    worker = await connect("surelane_worker")
    first = await Engine(worker).erase_uninstalled(GRACE, "worker w1")
    assert first is not None
    assert not first.done
    holder = await connect("surelane_worker")
    async with holder.transaction():
        await Engine(holder).erase_uninstalled(GRACE, "worker w2")
        assert await Engine(worker).erase_uninstalled(GRACE, "worker w1") is None  # w2 does a step
    await fleet.installations.save(installation("T1"))  # too late
    await fleet.erase()
    assert await fleet.left() == []
    assert await fleet.queue.fetchval("select count(*) from agent.erasure") == 1
    assert await fleet.queue.fetchval("select count(*) from agent.uninstall") == 0


async def test_an_owner_with_a_row_that_refuses_keeps_no_other_from_its_end(
    fleet: Fleet, capfd: pytest.CaptureFixture[str]
) -> None:
    for team in ("T1", "T2"):
        await fleet.store(team)
        await fleet.installations.uninstall(Owner(team), None)
    await fleet.later()
    await fleet.queue.execute(REFUSED.replace("keep", '"T1"'))
    await fleet.queue.execute(
        "create trigger theirs before delete on agent.event_hist for each row execute function public.refuse()"
    )
    try:
        assert not await fleet.erase()
        assert await fleet.left() == ["T1"]
        assert "rows cannot be erased" in capfd.readouterr().out
    finally:
        await fleet.queue.execute("drop function public.refuse() cascade")
    await fleet.erase()
    assert await fleet.left() == []
    assert await fleet.queue.fetchval("select count(*) from agent.uninstall") == 0


async def test_runs_that_do_not_end_keep_no_other_owner_and_are_ended_after_a_day(
    fleet: Fleet, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surelane_worker.duties.PATIENCE", 1)
    for team in ("T1", "T2"):
        await fleet.store(team)
        await fleet.installations.uninstall(Owner(team), None)
    (run, *_) = await do.claim(fleet.queue, "slack.message")
    await fleet.later()
    beats = "update agent.event set vt = agent.clock() + interval '9 days' where id = $1"
    await fleet.queue.execute(beats, run["id"])
    assert await fleet.erase()
    assert await fleet.left() == ["T1"]
    assert "runs do not end" in capfd.readouterr().out
    await fleet.queue.execute("update agent.erasure set asked_at = asked_at - interval '1 day'")
    assert not await fleet.erase()
    assert await fleet.left() == []
    assert await do.complete(fleet.queue, pair(run)) == ["stale"]

"""The simulator's conversations survive a restart."""

from pathlib import Path

from surelane_dev.simulator.installs import Asked, Installs
from surelane_dev.simulator.saved import Conversations
from surelane_dev.simulator.sessions import Sessions
from surelane_dev.simulator.workspace.demo import BOT, demo_workspace, workspace_of


async def test_conversations_survive(tmp_path: Path) -> None:
    path, workspace, sessions = tmp_path / "below/simulator.json", demo_workspace(), Sessions()
    general, lounge = workspace.channels["C0GENERAL1"], workspace.channels["C0LOUNGE01"]
    bakery = workspace_of("T0BAKERY01", "Bakery", None, workspace.app_id)
    installs = Installs((workspace, bakery))
    async with Conversations(path, installs, sessions).kept():
        given = installs.exchange(installs.approve(Asked("http://a/", "chat:write"), bakery, wide=False), "")
        bakery.post(bakery.channels["C0BAKERY01"], bakery.people()[0].id, "bread")
        asked = workspace.post(general, "U0ADA00001", "hello", blocks=[{"type": "divider"}])
        workspace.post(general, BOT.id, "hi", by_app=True, thread_ts=asked.ts)
        workspace.react(asked, BOT.id, "eyes")
        workspace.join(lounge, BOT.id)
        sessions.set_status(general.id, asked.ts, "processing", "A talk")
    assert path.stat().st_mode & 0o077 == 0, "only their owner reads them"

    again, recalled = demo_workspace(), Sessions()
    anew = workspace_of("T0BAKERY01", "Bakery", None, workspace.app_id)
    installed = Installs((again, anew))
    async with Conversations(path, installed, recalled).kept():
        assert again.channels == workspace.channels
        assert anew.channels == bakery.channels
        grant = installed.grant_of(given["access_token"])
        assert grant is not None
        assert grant.workspace is anew
        assert recalled.json() == sessions.json()
        assert float(again.next_ts()) > float(asked.ts)


async def test_a_file_that_cannot_be_read_does_not_stop_it(tmp_path: Path) -> None:
    path, workspace = tmp_path / "simulator.json", demo_workspace()
    path.write_text('{"rooms": 1}')
    async with Conversations(path, Installs((workspace,)), Sessions()).kept():
        workspace.post(workspace.channels["C0GENERAL1"], "U0ADA00001", "hello")
    assert "hello" in path.read_text()

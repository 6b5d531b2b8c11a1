"""Three installations in containers behind one router: an outage, a restart, a move that is killed under traffic."""

import asyncio
import os
import secrets
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from tests.deploy.commands import ROOT, run
from tests.deploy.compose import PASSWORDS, SECRETS, Project, project
from tests.processes import free_port, until
from tests.system.ingest_client import Slack, event_id, mention

pytestmark = [pytest.mark.container, pytest.mark.timeout(420)]
TEAMS = {"T0OTHER001": "alpha", "T0BAKERY01": "beta", "T0GARAGE01": "gamma"}
STORED = """with stored as (
select item_key, event from agent.event union all select item_key, event from agent.event_hist
) select coalesce(string_agg({}, ' '), '') from stored where item_key like 'Ev%'"""
KEYS, WORKSPACES = STORED.format("item_key"), STORED.format("distinct agent.event_workspace(event)")


@dataclass
class Shards:
    """The router with its folder, and the installations."""

    folder: Path
    env: dict[str, str]
    installations: dict[str, Project]
    acknowledged: Counter[str] = field(default_factory=Counter)
    """By workspace, how many events got 200."""
    keys: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    """The workspaces that got 503 since the set was emptied."""

    def router(self, *arguments: str) -> None:
        run("docker", "compose", "--progress=quiet", *arguments, env=self.env, where=self.folder, within=120)

    async def post(self, slack: Slack, team: str, stop: asyncio.Event) -> None:
        """Post events of a workspace, each as Slack does until it is acknowledged."""
        while not stop.is_set():
            sent = mention(event_id())
            sent["team_id"] = sent["authorizations"][0]["team_id"] = team
            status = 0
            while status != 200:
                with suppress(aiohttp.ClientError):
                    status = (await slack.event(sent)).status
                if status == 503:
                    self.refused.add(team)
                await asyncio.sleep(0.1)
            self.keys.append(sent["event_id"])
            self.acknowledged[team] += 1

    async def goes_on(self, *teams: str) -> None:
        """Wait until a few more events of these workspaces are acknowledged."""
        before = self.acknowledged.copy()
        await until(lambda: all(self.acknowledged[team] > before[team] + 3 for team in teams), within=60)

    @asynccontextmanager
    async def traffic(self) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as session:
            router = f"http://127.0.0.1:{self.env['SURELANE_ROUTER_PORT']}"
            slack = Slack(session, router, self.env["SLACK_SIGNING_SECRET"])
            stop = asyncio.Event()
            posting = [asyncio.create_task(self.post(slack, team, stop)) for team in TEAMS]
            try:
                yield
            finally:
                stop.set()
                await asyncio.wait(posting)

    async def move(self, team: str, *between: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *("./move", team, *between),
            cwd=self.folder,
            env=os.environ | self.env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )


@pytest.fixture(scope="module")
def shards(images: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    folder = tmp_path_factory.mktemp("shards")
    shutil.copytree(ROOT / "extensions/shards/router", folder, dirs_exist_ok=True)
    folder.chmod(0o755)
    name = f"surelane-test-{secrets.token_hex(4)}"
    passwords = {shard: {key: secrets.token_urlsafe(16) for key in PASSWORDS} for shard in TEAMS.values()}
    uris = [
        f"{shard}=postgresql://surelane:{own['SURELANE_OWNER_PASSWORD']}@{shard}-db/surelane"
        for shard, own in passwords.items()
    ]
    databases = f"{name}-databases"
    env = SECRETS | {
        "SHARDS_NETWORK": name,
        "COMPOSE_PROJECT_NAME": name,
        "SURELANE_ROUTER_PORT": str(free_port()),
        "SURELANE_SHARDS": " ".join(uris),
        "SURELANE_COMMAND": f"docker run --rm --name {name}-mover --network {databases} -e SURELANE_SHARDS"
        f" --entrypoint surelane {images['operator']}",
    }
    made = Shards(folder, env, {})
    with ExitStack() as stack:
        run("docker", "network", "create", "--internal", databases)
        stack.callback(run, "docker", "network", "rm", databases)
        stack.callback(made.router, "down", "--volumes", "--timeout=5")
        # The router's own base image may be out of reach where the services' is not. Both are Debian 13.
        made.router("build", "--quiet", "--build-arg=BASE=python:3.13-slim-trixie")
        made.router("up", "--detach")
        for number, shard in enumerate(TEAMS.values(), 1):
            more = {"SHARD": shard, "SHARD_NUMBER": str(number), "SHARDS_NETWORK": env["SHARDS_NETWORK"]}
            files = ("compose.yaml", "extensions/shards/router/shard.yaml")
            nowhere = {"SLACK_API_URL": "http://127.0.0.1:9/api/", "SURELANE_EVENT_TYPES": "app_mention"}
            running = stack.enter_context(project(*files, env=SECRETS | passwords[shard] | more | nowhere))
            stack.callback(running.compose, "kill", check=False)  # its workers would wait for their handlers
            running.compose("up", "--detach", "--wait", "--wait-timeout=120", "ingest", "worker")
            made.installations[shard] = running
        yield made


async def test_an_outage_of_one_installation_refuses_its_own_workspaces_alone(shards: Shards) -> None:
    async with shards.traffic():
        await shards.goes_on(*TEAMS)
        await asyncio.to_thread(shards.installations["gamma"].compose, "stop", "ingest")
        shards.refused.clear()
        await shards.goes_on("T0OTHER001", "T0BAKERY01")
        await until(lambda: bool(shards.refused))
        assert shards.refused == {"T0GARAGE01"}
        await asyncio.to_thread(shards.installations["gamma"].compose, "up", "--detach", "--wait", "ingest")
        await shards.goes_on(*TEAMS)
        await asyncio.to_thread(shards.router, "kill", "router")
        await asyncio.to_thread(shards.router, "up", "--detach")
        await shards.goes_on(*TEAMS)
    assert {shard: each.query(WORKSPACES) for shard, each in shards.installations.items()} == {
        shard: team for team, shard in TEAMS.items()
    }, "each installation's ingest stores in its own database"


async def test_a_workspace_moves_under_traffic_without_503_although_its_mover_is_killed(
    shards: Shards,
) -> None:
    mover, line = shards.env["COMPOSE_PROJECT_NAME"] + "-mover", shards.folder / "workspaces" / "T0BAKERY01"

    async with shards.traffic():
        await shards.goes_on(*TEAMS)
        shards.refused.clear()
        moving = await shards.move("T0BAKERY01", "beta", "gamma")
        await until(lambda: line.read_text() == "gamma\n", within=60)
        await shards.goes_on("T0BAKERY01")
        async with asyncio.timeout(60):
            while run("docker", "kill", mover, check=False).returncode != 0:  # noqa: ASYNC110 - it is not there yet
                await asyncio.sleep(0.05)
        await moving.communicate()
        assert moving.returncode != 0
        again = await shards.move("T0BAKERY01", "beta", "gamma")
        printed, _ = await again.communicate()
        assert again.returncode == 0, printed.decode()
        await shards.goes_on(*TEAMS)
        assert not shards.refused
    left = "select id, kind, attempts, enqueued_at, enqueued_by from agent.event where agent.event_workspace(event) ="
    assert shards.installations["beta"].query(f"{left} 'T0BAKERY01'") == ""
    stored = Counter(" ".join(each.query(KEYS) for each in shards.installations.values()).split())
    assert stored == Counter(shards.keys), "each acknowledged event is in one installation, once"

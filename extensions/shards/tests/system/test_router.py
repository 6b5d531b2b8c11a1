"""The router (nginx) in front of two real installations."""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import aiohttp
import psutil  # type: ignore[import-untyped]
import pytest

from surelane_dev.processes import ChildProcess
from surelane_service.webhooks import sign
from tests.databases import Databases, Server, as_role
from tests.needs import lacking, program
from tests.processes import Service, free_port, service, until
from tests.sql import migrations
from tests.system.ingest_client import Answer, Slack, envelope, mention, settings
from tests.system.raw_http import connected, post
from tests.system.test_triggers import NEW, SECRETS

ROUTER = Path(__file__).parents[2] / "router"
MEMORY = 256 * 1024 * 1024
"""The router's memory limit in the example."""
WORKERS = 2
MODULE = Path("/usr/lib/nginx/modules/ngx_http_js_module.so")
BAKERY, GARAGE, MOVED = "T0BAKERY01", "T0GARAGE01", "T0MOVED001"


class Router:
    """A running nginx with the example's configuration, on ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.private = free_port(), free_port()
        self.shown: list[str] = []
        self.nginx = program("nginx")
        if not MODULE.exists():
            lacking("nginx's module js is not installed")
        self.child: ChildProcess | None = None

    def write(self, installations: dict[str, Service]) -> None:
        """Write the configuration: the example's, with these ports and directories."""
        shutil.copy(ROUTER / "router.js", self.folder)
        text = (ROUTER / "nginx.conf").read_text()
        text = text.replace("listen 8080", f"listen 127.0.0.1:{self.port}")
        text = text.replace("listen 8082", f"listen 127.0.0.1:{self.private}")
        # A busy machine needs longer to connect a crowd.
        text = re.sub("(client_(?:header|body)_timeout) 5s", r"\1 120s", text)
        text = text.replace("/tmp/", f"{self.folder}/").replace("/etc/surelane/", f"{self.folder}/")
        (self.folder / "nginx.conf").write_text(text)
        shards = (ROUTER / "shards.conf").read_text()
        for name, running in installations.items():
            shards = shards.replace(f"{name}-ingest:8080", f"127.0.0.1:{running.port}")
            shards = shards.replace(f"{name}-ingest:8081", f"127.0.0.1:{running.private_port}")
        (self.folder / "shards.conf").write_text(shards)
        shutil.copytree(ROUTER / "workspaces", self.folder / "workspaces")
        self.send(GARAGE, "beta")

    def send(self, team: str, to: str) -> None:
        """Give a workspace to an installation, as ``move`` does. Those of the example have theirs."""
        (self.folder / "new").write_text(f"{to}\n")
        (self.folder / "new").replace(self.folder / "workspaces" / team)

    async def start(self) -> None:
        command = (self.nginx, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"))
        self.child = await ChildProcess.start(
            "nginx", *command, "-g", "daemon off; user root;", on_line=self.shown.append
        )
        await until(self._complete, what=f"nginx and its workers are there; it said {self.shown}")

    def _complete(self) -> bool:
        """nginx writes its pid before it starts its workers."""
        assert self.child is not None
        assert self.child.exit_code is None, self.shown
        return (self.folder / "nginx.pid").exists() and len(self.processes()) == 1 + WORKERS

    def processes(self) -> list[psutil.Process]:
        """Return nginx's main process and its workers."""
        assert self.child is not None
        main = psutil.Process(self.child.process.pid)
        return [main, *main.children()]

    async def kill(self) -> None:
        assert self.child is not None
        self.child.kill()
        await self.child.wait()
        (self.folder / "nginx.pid").unlink(missing_ok=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass
class Stand:
    """Slack, the router, and the installations that it knows."""

    slack: Slack
    router: Router
    installations: dict[str, Service]
    databases: dict[str, str]

    async def mention(self, team: str, **headers: str) -> Answer:
        sent = mention()
        sent["team_id"] = sent["authorizations"][0]["team_id"] = team
        return await self.slack.event(sent, **headers)

    async def teams(self, name: str) -> list[str]:
        """Return the workspaces of what an installation stored, in the order of their arrival."""
        async with migrations.connected(self.databases[name]) as connection:
            rows = await connection.fetch("select event from agent.event order by id")
        return [json.loads(row["event"]).get("team_id", "") for row in rows]

    async def ready(self, name: str) -> int:
        url = f"http://127.0.0.1:{self.router.private}/readyz/{name}"
        async with self.slack.session.get(url) as response:
            return response.status


@pytest.fixture
async def stand(tmp_path: Path, server: Server, databases: Databases) -> AsyncIterator[Stand]:
    router = Router(tmp_path)
    async with AsyncExitStack() as stack:
        uris = {
            name: server.uri(await stack.enter_async_context(databases.lent())) for name in ("alpha", "beta")
        }
        running = {name: await stack.enter_async_context(_ingest(uri)) for name, uri in uris.items()}
        session = await stack.enter_async_context(aiohttp.ClientSession())
        router.write(running)
        await router.start()
        stack.push_async_callback(router.kill)
        yield Stand(Slack(session, router.url), router, running, uris)


@asynccontextmanager
async def _ingest(uri: str) -> AsyncIterator[Service]:
    more = {"SURELANE_EVENT_TYPES": "app_mention", "SURELANE_COMMANDS": "/rules"}
    more["SURELANE_TRIGGER_SECRETS"] = SECRETS
    async with service("surelane_ingest", settings(as_role(uri, "surelane_ingest"), **more)) as running:
        yield running


async def test_each_request_reaches_the_installation_of_its_workspace_unchanged(stand: Stand) -> None:
    """Ingest checks the signature of the body, so 200 says that no byte changed."""
    for team in (BAKERY, "T0UNKNOWN1", GARAGE, "T0UNKNOWN2"):
        assert (await stand.mention(team)).status == 200
    said = {"type": "app_mention", "user": "U1", "text": "hi", "ts": "1.2", "channel": "C1"}
    organizations = envelope(said)
    organizations |= {"team_id": "T0UNKNOWN1", "authorizations": [{"team_id": BAKERY, "user_id": "UBOT"}]}
    assert (await stand.slack.event(organizations)).status == 200
    command = {"command": "/rules", "team_id": BAKERY, "trigger_id": "1.2", "user_id": "U1"}
    assert (await stand.slack.form("/slack/events", command)).status == 200
    # A person of another organization clicks in a view that the bakery's installation opened.
    clicked = {
        "type": "block_actions",
        "team": {"id": "T0FOREIGN1"},
        "view": {"team_id": BAKERY, "app_installed_team_id": BAKERY},
        "user": {"id": "U1"},
        "trigger_id": "1.3",
        "actions": [{"action_id": "a", "block_id": "b", "type": "button", "value": "1"}],
    }
    assert (await stand.slack.form("/slack/events", {"payload": json.dumps(clicked)})).status == 200

    for where, body in (("", b"{}"), ("", b'{"team_id": "T0GARAGE01"}'), (f"?team={BAKERY}", b"[1]")):
        headers = {"Content-Type": "application/json", **sign(f"msg_{len(body)}", body, [NEW])}
        assert (await stand.slack.send("POST", f"/v1/triggers/git{where}", body, headers)).status == 200

    assert await stand.teams("alpha") == ["T0UNKNOWN1", "T0UNKNOWN2", ""]
    assert (await stand.teams("beta"))[:3] == [BAKERY, GARAGE, "T0UNKNOWN1"]
    assert len(await stand.teams("beta")) == 7


async def test_the_map_is_read_for_each_request_and_an_outage_and_a_killed_router_cost_others_nothing(
    stand: Stand,
) -> None:
    assert (await stand.mention(MOVED)).status == 200
    stand.router.send(MOVED, "beta")
    assert (await stand.mention(MOVED)).status == 200
    assert (await stand.teams("alpha"), await stand.teams("beta")) == ([MOVED], [MOVED])
    stand.router.send("default", "beta")
    assert (await stand.mention("T0UNKNOWN1")).status == 200
    assert await stand.teams("beta") == [MOVED, "T0UNKNOWN1"]
    stand.router.send("default", "alpha")

    await stand.router.kill()
    stand.router.send("T0TYPO0001", "bta")
    await stand.router.start()
    assert [(await stand.mention(team)).status for team in (BAKERY, "T0UNKNOWN1")] == [200, 200]
    answer = await stand.mention("T0TYPO0001")
    assert (answer.status, answer.body, answer.headers["Retry-After"]) == (
        503,
        b"unknown installation\n",
        "60",
    )
    await until(lambda: "sends T0TYPO0001 to bta" in "".join(stand.router.shown), what="the error")

    beta = stand.installations["beta"]
    beta.child.kill()
    await beta.child.wait()
    down = await stand.mention(BAKERY)
    assert (down.status, down.no_retry, b"does not answer" in down.body) == (503, False, True)
    assert (await stand.mention("T0UNKNOWN1")).status == 200
    assert (await stand.ready("alpha"), await stand.ready("beta")) == (200, 503)


@pytest.mark.parametrize(
    ("count", "sent", "answered"),
    [
        (600, post(b"") + b"Content-Length: 1000000\r\n\r\n" + b"x" * 520_000, 600 - 64),
        (9000, b"POST /slack/events HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 3000, 0),
    ],
    ids=["half bodies", "half headers"],
)
async def test_unfinished_requests_take_neither_the_memory_nor_slacks_turn(
    stand: Stand, count: int, sent: bytes, answered: int
) -> None:
    """Slack has another address than the crowd."""
    processes = stand.router.processes()
    before = _open(processes)

    async with AsyncExitStack() as stack:
        crowd = [
            await stack.enter_async_context(connected(stand.router.port, local="127.0.0.2"))
            for _ in range(count)
        ]
        for _, writer in crowd:
            writer.write(sent)
        refused = [asyncio.create_task(reader.read(12)) for reader, _ in crowd]
        for first in islice(asyncio.as_completed(refused), answered):
            assert await first in (b"HTTP/1.1 503", b"")
        held = before + count - answered
        await until(lambda: _open(processes) >= held, within=200, what="the crowd is there")
        assert (await stand.mention(BAKERY)).status == 200
        taken = sum(process.memory_info().rss for process in processes)
        assert taken < MEMORY
        for task in refused:
            task.cancel()


def _open(processes: list[psutil.Process]) -> int:
    return sum(process.num_fds() for process in processes)


async def test_nonsense_and_what_slack_does_not_post_is_refused_and_stored_nowhere(stand: Stand) -> None:
    for body, kind, status in (
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"team_id": {"a": 1}}', "application/json", 400),
        (b"payload=%7B", "application/x-www-form-urlencoded", 400),
        (b"", "application/json", 400),
        (b"x" * (1024 * 1024 + 1), "application/json", 413),
    ):
        assert (await stand.slack.post("/slack/events", body, kind)).status == status, body[:40]
    for path in ("/", "/metrics", "/v1/jobs", "/readyz/alpha"):
        assert (await stand.slack.send("GET", path, b"", {})).status == 404
    assert (await stand.teams("alpha"), await stand.teams("beta")) == ([], [])

"""The Compose files of `surelane new`: a demonstration, production, backups, and a way back to a point in time."""

import asyncio
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from surelane_dev.new import write_project
from tests.deploy.commands import run
from tests.deploy.compose import SECRETS, Project, config, project
from tests.needs import lacking
from tests.scenario import answered_once, new_mention, send

BACKED_UP = ("compose.yaml", "compose.override.yaml", "compose.backups.yaml")
ENDED = "select count(*) from agent.event_hist"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a new project, whose image has a name of its own."""
    directory = tmp_path_factory.mktemp("new") / f"bot-{secrets.token_hex(4)}"
    write_project(directory)
    return directory


def files(directory: Path, *names: str) -> tuple[str, ...]:
    return tuple(str(directory / name) for name in names)


@pytest.mark.parametrize("kind", ["", "agent", "bolt"])
def test_production_has_an_account_per_service_and_no_simulator(tmp_path: Path, kind: str) -> None:
    write_project(tmp_path / "mybot", kind)
    named = files(tmp_path / "mybot", "compose.yaml", "compose.tls.yaml", "compose.backups.yaml")
    given = {**SECRETS, "SURELANE_API_TOKEN": "a-token", "SURELANE_DOMAIN": "bot.example.com"}
    given |= {
        "SURELANE_CONCURRENCY": "3",
        "SURELANE_BUFFER": "7",
        "SURELANE_MCP": "read",
        "LOG_LEVEL": "debug",
    }
    read = config(*named, env=given)
    services = read["services"]
    assert set(services) == {"settings", "db", "migrate", "ingest", "worker", "operator", "proxy"}
    assert read["networks"]["database"]["internal"] is True
    for name in ("ingest", "worker", "operator"):
        assert services[name]["environment"]["PGPASSWORD"] == SECRETS[f"SURELANE_{name.upper()}_PASSWORD"]
        assert {port["host_ip"] for port in services[name].get("ports", [])} <= {"127.0.0.1"}
        assert services[name]["environment"]["LOG_LEVEL"] == "debug"
        others = {SECRETS[key] for key in SECRETS if key.endswith("_PASSWORD") and name.upper() not in key}
        assert others.isdisjoint(services[name]["environment"].values())
    for name, setting in (("worker", "CONCURRENCY"), ("ingest", "BUFFER"), ("operator", "MCP")):
        assert services[name]["environment"][f"SURELANE_{setting}"] == given[f"SURELANE_{setting}"]
    for name in set(services) - {"settings"}:
        assert "/tmp" in services[name]["tmpfs"], name
    alone = config(*files(tmp_path / "mybot", "compose.yaml"), env=given)["services"]["db"]["command"]
    assert services["db"]["command"][: len(alone)] == alone, "backups leave the server's other settings alone"


def test_every_service_has_the_manifest(written: Path) -> None:
    services = config(*files(written, "compose.yaml", "compose.override.yaml"))["services"]
    for name in ("simulator", "ingest", "operator"):  # the worker's image has it beside the handlers
        (mounted,) = services[name]["volumes"]
        assert mounted["source"] == str(written / "manifest.yaml")
        assert services[name]["environment"]["SURELANE_MANIFEST"] == mounted["target"]


@pytest.fixture
def running(written: Path, tmp_path: Path, images: dict[str, str]) -> Iterator[Project]:  # noqa: ARG001
    """Run the demonstration with backups."""
    if os.getuid():
        lacking("only root can give the backups to the database's user")
    backups = tmp_path / "backups"
    backups.mkdir(mode=0o700)
    os.chown(backups, 70, 70)
    for above in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        above.chmod(above.stat().st_mode | 0o011)
    with project(*files(written, *BACKED_UP), env={"SURELANE_BACKUPS": str(backups)}) as up:
        up.compose("up", "--detach", "--wait", "--wait-timeout=240", "--build", within=400)
        yield up
    run("docker", "image", "rm", written.name, check=False)


@pytest.mark.container
@pytest.mark.timeout(900)
async def test_a_new_project_goes_back_to_a_point_in_time(running: Project) -> None:
    def backup(command: str, **env: str) -> str:
        given = [part for name, value in env.items() for part in ("--env", f"{name}={value}")]
        return running.compose("run", "--rm", "--no-deps", *given, command)

    await answered_once(running.system)
    assert "/backups/base/" in await asyncio.to_thread(backup, "backup")
    # The moment has whole seconds: what comes later, comes a second later.
    moment = running.query(
        """select to_char(clock_timestamp() at time zone 'utc' + interval '1 s', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""
        " from pg_sleep(1)"
    )
    kept = int(running.query(ENDED))
    running.query("select pg_sleep(2)")
    await answered_once(running.system)
    last = running.query("select pg_walfile_name(pg_switch_wal())")
    while running.query("select coalesce(max(last_archived_wal), '') from pg_stat_archiver") < last:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    await asyncio.to_thread(running.compose, "stop")
    await asyncio.to_thread(backup, "restore", SURELANE_RESTORE_TO=moment)
    await asyncio.to_thread(running.compose, "up", "--detach", "--wait", "--wait-timeout=240")
    assert int(running.query(ENDED)) == kept
    assert await send(running.system, await new_mention(running.system)) == 200
    await answered_once(running.system)

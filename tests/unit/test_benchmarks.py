"""Plans of deployments follow from measured costs; benchmarks leave out what a machine cannot run."""

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.peers import graphile
from benchmarks.peers.missing import MissingError
from benchmarks.plan import BUSY, Load, main, most_workspaces, plan

SMALL = Load(workspaces=1, events_per_minute=1)
BUSY_TEAM = Load(workspaces=60, events_per_minute=10, peak=4, handler_seconds=5, concurrency=10)
"""Ten events a second on average, forty at the peak, two hundred handlers at once."""


def test_workers_follow_littles_law_history_grows_with_events_and_cores_bound_workspaces() -> None:
    found = plan(SMALL)
    assert (found.ingests, found.workers, found.shards) == (2, 2, 1)
    assert found.connections == 2 * 11 + 2 * 11 + 19
    assert plan(BUSY_TEAM).workers == 200 // 10 + 1
    assert plan(replace(BUSY_TEAM, concurrency=50)).workers == 200 // 50 + 1
    # Shards carry half as much again as the peak.
    assert [plan(replace(BUSY_TEAM, shard_rate=rate)).shards for rate in (60, 59)] == [1, 2]
    once, twice = plan(BUSY_TEAM), plan(replace(BUSY_TEAM, events_per_minute=20, peak=1, handler_seconds=1))
    assert twice.storage == pytest.approx(2 * once.storage)
    assert plan(replace(BUSY_TEAM, retention_days=30)).storage == pytest.approx(once.storage / 3)
    most = most_workspaces(BUSY_TEAM, 8)
    cores = [sum(plan(replace(BUSY_TEAM, workspaces=each)).cores.values()) for each in (most, most + 1)]
    assert cores[0] <= 8 * BUSY < cores[1]


def test_the_command_says_what_it_lacks_and_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "--workspaces" in capsys.readouterr().err
    assert main(["--workspaces", "60", "--events-per-minute", "10", "--cores", "2"]) == 0
    shown = capsys.readouterr().out
    assert "10.0/s on average, 40.0/s at the peak" in shown
    assert "2 cores carry" in shown
    for bad in ("0", "-1", "many", "nan", "inf"):
        with pytest.raises(SystemExit):
            main(["--cores", bad])


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def test_what_npm_cannot_install_is_missing_and_what_is_there_is_not_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "package.json"
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path / "node", "exit 0")
    with pytest.raises(MissingError, match="no Node with npm"):
        await graphile.prepare(package)
    program(tmp_path / "npm", "echo out of reach; exit 1")
    with pytest.raises(MissingError, match="npm could not install graphile-worker"):
        await graphile.prepare(package)
    assert "out of reach" in capsys.readouterr().err
    package.write_text(f'{{"version": "{graphile.VERSION}"}}')
    await graphile.prepare(package)

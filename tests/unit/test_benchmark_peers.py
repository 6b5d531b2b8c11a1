"""A benchmark leaves out a peer that the machine cannot run, with a reason."""

from pathlib import Path

import pytest
from benchmarks.peers import graphile
from benchmarks.peers.missing import MissingError


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the only one on the path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path / "node", "exit 0")
    return tmp_path


async def test_without_npm_graphile_worker_is_missing(programs: Path) -> None:
    with pytest.raises(MissingError, match="no Node with npm"):
        await graphile.prepare(programs / "package.json")


async def test_what_npm_cannot_install_is_missing(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(programs / "npm", "echo out of reach; exit 1")
    with pytest.raises(MissingError, match="npm could not install graphile-worker"):
        await graphile.prepare(programs / "package.json")
    assert "out of reach" in capsys.readouterr().err


async def test_what_is_installed_is_not_installed_again(programs: Path) -> None:
    program(programs / "npm", "exit 1")
    (programs / "package.json").write_text(f'{{"version": "{graphile.VERSION}"}}')
    await graphile.prepare(programs / "package.json")

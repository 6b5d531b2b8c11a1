"""A benchmark leaves out a peer that the machine cannot run, with a reason."""

from pathlib import Path

import pytest
from benchmarks.peers import graphile
from benchmarks.peers.missing import MissingError


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

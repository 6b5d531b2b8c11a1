"""One command asks several installations."""

import json
import sys
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest

from surelane import Queue
from surelane.calls import Connection
from surelane_operator.shards import known
from tests.system.operators import emptied
from tests.system.test_cli import Command, surelane

connection = emptied
__all__ = ["connection", "surelane"]


async def test_a_command_asks_several_installations_and_tells_which_one_is_away(
    surelane: Command,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    await Queue(connection).enqueue("mail", {})
    monkeypatch.setenv("SURELANE_SHARDS", f"alpha={surelane.database} beta=postgresql://127.0.0.1:9/away")
    monkeypatch.setattr(sys, "argv", ["surelane", "--shard", "all", "stats", "--json"])
    every = await surelane("--shard", "all", "stats", "--json")
    printed = capfd.readouterr()
    assert every.refused(4, "== alpha\n== beta\n")
    assert [kind["kind"] for kind in json.loads(printed.out)["kinds"]] == ["mail"]
    assert printed.err.startswith("surelane: cannot reach")


async def test_a_command_for_several_installations_runs_as_it_was_given_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[tuple[list[str], str]] = []

    def run(command: list[str], *, env: dict[str, str], check: bool) -> CompletedProcess[str]:
        assert not check
        ran.append((command[3:], env["SURELANE_OPERATOR_DATABASE_URL"]))
        return CompletedProcess(command, {"a": 0, "b": 3, "c": 1}[ran[-1][1]])

    monkeypatch.setattr("surelane_shards.each.subprocess", SimpleNamespace(run=run))
    monkeypatch.setenv("SURELANE_SHARDS", "alpha=a beta=b  gamma=c")
    assert list(known()) == ["alpha", "beta", "gamma"]
    for shard, code, reached in ((["--shard", "all"], 3, "abc"), (["--shard=gamma,alpha"], 1, "ca")):
        ran.clear()
        given = ["--as", "ada", *shard, "kinds", "pause", "mail"]
        monkeypatch.setattr(sys, "argv", ["surelane", *given])
        assert (await Command("")(*given)).code == code
        assert ran == [(["--as", "ada", "kinds", "pause", "mail"], each) for each in reached]
    wrong = await Command("")("--shard", "delta", "stats")
    assert wrong.refused(2, "SURELANE_SHARDS names alpha, beta, gamma")

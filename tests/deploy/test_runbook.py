"""The commands and links in the runbook exist."""

import re
import shlex

import pytest
import typer

from surelane_operator.cli.command import app
from tests.deploy.commands import ROOT
from tests.deploy.manifests import OBSERVED, rendered
from tests.deploy.monitoring import RUNBOOK

TEXT = RUNBOOK.read_text()
CODE = re.findall(r"`([^`\n]+)`", TEXT) + [
    line for block in TEXT.split("```")[1::2] for line in block.splitlines()
]
COMMANDS = sorted({code.partition("#")[0].strip() for code in CODE if re.match(r"surelane [a-z]", code)})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_and_their_options_exist(command: str) -> None:
    found = typer.main.get_command(app)
    _, *words = shlex.split(command)
    while words and hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    options = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_commands_are_found_at_all() -> None:
    assert len(COMMANDS) > 5


def test_what_it_asks_the_database_for_exists() -> None:
    schema = (ROOT / "migrations/src/surelane_migrations/schema.txt").read_text()
    names = set(re.findall(r"\bagent\.([a-z_]+)", TEXT))
    assert names
    for name in names:
        assert re.search(rf"^(function|table|view) {name}\b", schema, re.MULTILINE), f"agent.{name}"


def test_workloads_are_called_so() -> None:
    there = {(manifest["kind"].lower(), manifest["metadata"]["name"]) for manifest in rendered(OBSERVED)}
    named = set(re.findall(r"\b(deployment|job)/([\w.-]+\w)", TEXT))
    assert named
    assert named <= there

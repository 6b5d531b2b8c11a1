"""What the runbook names exists. tests/docs checks its commands."""

import re

from tests.deploy.commands import ROOT
from tests.deploy.manifests import OBSERVED, rendered
from tests.deploy.monitoring import RUNBOOK

TEXT = RUNBOOK.read_text()


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

"""The examples load and have the documented kinds."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surelane_worker.handling.registry import registered_in
from surelane_worker.wiring import load_handlers

TEAM = Path(__file__).parents[2] / "examples/team"


@pytest.fixture
def in_the_teams_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(TEAM)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "team_bot"]:
        del sys.modules[name]


@pytest.mark.usefixtures("in_the_teams_directory")
def test_teams_handlers_load() -> None:
    loaded = registered_in(load_handlers("team_bot:handlers")).all()
    kinds = "app_mention message.im command.status block_actions shortcut message_action view_submission"
    expected = {f"slack.{kind}" for kind in (*kinds.split(), "app_home_opened")} | {"reminder"}
    assert {kind for handler in loaded for kind in handler.kinds} == expected


def test_teams_image_is_named_after_the_handlers_it_copies() -> None:
    lines = (TEAM / "Dockerfile").read_text().splitlines()
    assert len(lines) == 7
    assert "ENV SURELANE_HANDLERS=team_bot:handlers" in lines

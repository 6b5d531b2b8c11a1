"""The worker takes what installed extensions bring, and names the one that is missing."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from surelane.errors import SettingsError
from surelane_service.service_settings import load_settings
from surelane_worker import Handlers, extensions
from surelane_worker.extensions import Extension, adapted, start_extensions
from surelane_worker.handling.registry import registered_in
from surelane_worker.wiring import with_answers
from surelane_worker.worker_settings import WorkerSettings

OWN = Handlers()
STARTED = list[WorkerSettings]()


@OWN.on("own")
async def own(*_: object) -> None:
    """Do nothing."""


FIRST = Extension(beside=lambda: OWN, start=STARTED.append)
SECOND = Extension(adapt=lambda found: OWN if found == "theirs" else None)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    entries = [EntryPoint(name, f"{__name__}:{name.upper()}", "any") for name in ("second", "first")]
    monkeypatch.setattr(EntryPoint, "load", lambda entry: globals()[entry.attr])
    monkeypatch.setattr(extensions, "entry_points", lambda **_: entries)
    extensions.extensions.cache_clear()
    yield
    extensions.extensions.cache_clear()
    STARTED.clear()


def settings(**given: Any) -> WorkerSettings:
    return load_settings(WorkerSettings, DATABASE_URL="postgresql://", SLACK_BOT_TOKEN="xoxb-any", **given)


def test_an_extension_makes_handlers_brings_some_and_is_started() -> None:
    assert extensions.extensions() == (FIRST, SECOND)
    assert (adapted("theirs"), adapted("nobody's")) == (OWN, None)
    assert "own" in registered_in(with_answers(Handlers(), settings())).by_kind()
    given = settings()
    start_extensions(given, {"SURELANE_CONCURRENCY": "5", "SURELANE_MODEL": ""})
    assert [given] == STARTED


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("SURELANE_MODEL", "surelane-agents"),
        ("SURELANE_MODEL_KEY_FILE", "surelane-agents"),
        ("SURELANE_FILE_MEMORY", "surelane-agents"),
        ("SURELANE_BOLT_KINDS", "surelane-bolt"),
    ],
)
def test_a_setting_names_the_extension_that_is_not_installed(name: str, package: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name} is set; install {package}$"):
        start_extensions(settings(), {name: "any"})

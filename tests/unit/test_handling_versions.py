"""Versions of handlers: how they are registered, and which one takes an event."""

from typing import Any

import pytest

from surelane_worker import Handlers
from surelane_worker.handling.handler import HandlersError
from surelane_worker.handling.registry import registered_in


async def handle(*_: Any) -> None:
    """Do nothing."""


def registered(*versions: str | None, into: Handlers | None = None, **bounds: Any) -> Handlers:
    handlers = into or Handlers()
    for version in versions:
        on: Any = handlers.on
        on("order", version=version, **bounds)(handle)
    return handlers


def test_one_handler_claims_the_kind_and_those_of_its_versions() -> None:
    by_kind = registered_in(registered("1", "9", "10")).by_kind()
    assert sorted(by_kind) == ["order", "order@1", "order@10", "order@9"]
    (handler,) = set(by_kind.values())
    assert handler.version == "10"
    versions = {"1": "1", "9": "9", "10": "10"}
    assert {version: each.version for version, each in handler.versions.items()} == versions
    assert list(registered_in(registered(None)).by_kind()) == ["order"], "without a version, the kind alone"


def test_version_is_made_of_numbers_and_each_function_of_a_kind_names_one_of_its_own() -> None:
    for version in ("", "two", "1.", ".1", "01", "1..2", "-1", "٢", "1" * 21, "1\n"):
        with pytest.raises(HandlersError, match="version is a text of numbers"):
            registered(version)
    for versions in ((None, "2"), ("2", None), ("2", "2"), (None, None)):
        with pytest.raises(HandlersError, match=r"two handlers for 'order'.*version='1'"):
            registered(*versions)


def test_versions_of_a_kind_gather_events_alike_and_have_room_in_it() -> None:
    handlers = registered("1", debounce="1s")
    with pytest.raises(HandlersError, match="same debounce"):
        registered_in(registered("2", into=handlers)).by_kind()
    with pytest.raises(HandlersError, match="fewer than 180 characters"):
        Handlers().on("k" * 180, version="2")(handle)


def test_old_versions_may_stand_in_an_included_set_and_come_after_a_handler_without_one() -> None:
    for own, kinds in (("2", ["order", "order@2", "order@1"]), (None, ["order"])):
        handlers = registered(own)
        handlers.include(registered("1"))
        by_kind = registered_in(handlers).by_kind()
        assert list(by_kind) == kinds
        assert by_kind["order"].version == own


def test_failure_hooks_are_for_kinds_without_versions() -> None:
    handlers = registered("1", "2")
    handlers.on_failure()(handle)
    hooks = [kind for kind in registered_in(handlers).by_kind() if "failed" in kind]
    assert hooks == ["surelane.failed:order"]

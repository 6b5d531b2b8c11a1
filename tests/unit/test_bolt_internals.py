"""The parts of slack-bolt that are not public are as ``surelane_worker.bolt.internals`` expects them."""

import re
from typing import Any

import pytest
from slack_bolt import Assistant

from surelane_worker.bolt.internals import Registered, assistants, registered
from tests.unit.test_bolt_kinds import Make, async_app, listen, sync_app


@pytest.mark.parametrize("make", [sync_app, async_app])
def test_listeners_show_what_they_were_registered_for(make: Make) -> None:
    app: Any = make()
    pattern = re.compile("b")
    assert not list(registered(app))
    app.event("a")(listen)
    app.event(pattern)(listen)
    app.event({"type": "c"})(listen)
    app.message("hello")(listen)
    app.command("/d")(listen)
    app.action("e")(listen)
    found = list(registered(app))
    assert {listener.name for listener in found} == {"listen"}
    sorts = ["event", "event", "event", "message_event", "command", "action"]
    assert [listener.sort for listener in found] == sorts
    wanted = [listener.wanted for listener in found]
    assert [wanted[0]["event_type"], wanted[1]["event_type"]] == ["a", pattern]
    assert wanted[2]["constraints"] == {"type": "c"}
    assert wanted[3]["constraints"]["type"] == "message"
    assert wanted[4]["command"] == "/d"


def test_unknown_matcher_has_no_sort_and_assistants_are_among_the_middleware() -> None:
    app = sync_app()
    app.command("/d")(listen)
    (listener,) = app._listeners  # noqa: SLF001 - this file is about them
    listener.matchers[0].func = None  # type: ignore[attr-defined]
    assert list(registered(app)) == [Registered("listen", "", {})]
    assert not assistants(app)
    app.use(Assistant())
    assert assistants(app)

"""Run a simulated Slack with the events to which a module's app subscribes."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from surelane_dev.simulator import interactions
from tests.system.slack_app import Pair, simulated


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a trigger be valid for longer than Slack does: a busy machine may take seconds to use it."""
    monkeypatch.setattr(interactions, "TRIGGER_LASTS", timedelta(minutes=5))


@pytest.fixture
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """Run a simulator for the test. A module may name its ``SUBSCRIPTIONS``."""
    chosen = getattr(request.module, "SUBSCRIPTIONS", None)
    async with simulated(**({} if chosen is None else {"subscriptions": chosen})) as running:
        yield running

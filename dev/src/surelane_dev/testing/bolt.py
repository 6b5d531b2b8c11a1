"""Run a Bolt app in a test: let it find a simulated Slack, and make handlers of it once."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING
from urllib.request import build_opener, install_opener

import pytest

from surelane_service.service_settings import DEMO_BOT_TOKEN, DEMO_SIGNING_SECRET
from surelane_worker import Handlers
from surelane_worker.slack.simulated import use_simulator
from surelane_worker.wiring import handlers_from

if TYPE_CHECKING:
    from slack_bolt import App
    from slack_bolt.async_app import AsyncApp

_apis: list[str] = []
"""The simulated Slacks that stand in Slack's place now, the newest last."""


@cache  # an app is a module's: each of its tests takes it as the first one has left it
def handlers_of(app: "App | AsyncApp") -> Handlers:
    """Return handlers that run the app's listeners. Raises HandlersError: the extension for Bolt is not installed."""
    return handlers_from(app, "the fixture handlers")


@contextmanager
def in_place_of_slack(api: str) -> Iterator[None]:
    """Let apps that this process makes or runs in the block call the Web API at ``api``, with demonstration secrets."""
    variables = {"SLACK_API_URL": api, "SLACK_BOT_TOKEN": DEMO_BOT_TOKEN}
    variables["SLACK_SIGNING_SECRET"] = DEMO_SIGNING_SECRET
    with pytest.MonkeyPatch.context() as environment:
        for name, value in variables.items():
            environment.setenv(name, value)
        _apis.append(api)
        use_simulator(api)
        try:
            yield
        finally:
            _apis.remove(api)
            if _apis:
                use_simulator(_apis[-1])
            else:
                install_opener(build_opener())

# ruff: noqa: ARG001 - a handler takes both arguments, used or not
"""A message through another app is handled if a person is behind it: only Slack knows that."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from slack_sdk.errors import SlackApiError

from surelane_worker import Context, Event, Handlers
from surelane_worker.builtin.messages import BY_BOT
from surelane_worker.handling.outcomes import Complete
from surelane_worker.handling.registry import registered_in
from surelane_worker.wiring import with_answers
from surelane_worker.worker_settings import WorkerSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MENTION = {"type": "app_mention", "channel": "C1", "user": "U1", "bot_id": "B2", "app_id": "A2"}
ALL = [f"slack.{name}" for name in ("app_mention", "message.im", "message.channels")]


class Client:
    """Slack's ``users.info``, where ``bots`` are bots; ``error``: what Slack refuses with."""

    def __init__(self, bots: str = "UBOT", error: str = "") -> None:
        self.bots, self.error, self.asked = bots, error, 0

    async def users_info(self, *, user: str) -> dict[str, Any]:
        self.asked += 1
        if self.error:
            raise SlackApiError(self.error, {"ok": False, "error": self.error})  # type: ignore[no-untyped-call]
        return {"ok": True, "user": {"id": user, "is_bot": user == self.bots}}


async def handled(client: Client, *messages: dict[str, Any], bots: bool = False) -> list[object]:
    handlers = Handlers()

    @handlers.on(*ALL)
    async def answer(event: Event, ctx: Context) -> str:
        return "answered"

    settings = cast("WorkerSettings", SimpleNamespace(bot_messages=bots, failure_reply="off"))
    known = registered_in(with_answers(handlers, settings)).by_kind()
    ctx = cast("Context", SimpleNamespace(slack=SimpleNamespace(client=client)))
    told = []
    for number, message in enumerate(messages):
        payload = {"type": "event_callback", "api_app_id": "A1", "event": message}
        kind = ALL[0] if message["type"] == "app_mention" else ALL[1]
        event = Event(number, kind, NOW, 1, 1, NOW, json.dumps(payload))
        told.append(await known[kind].call(event, ctx))
    return told


@pytest.mark.parametrize(
    ("more", "answered", "asked"),
    [
        ({}, True, 1),
        ({"user": "UBOT"}, False, 1),
        ({"user": "UBOT", "type": "message", "channel_type": "mpim"}, False, 1),
        ({"type": "message", "channel_type": "im"}, True, 0),
        ({"user": "UBOT", "app_id": "A1"}, True, 0),  # the app's own, which ingest takes by a setting
        ({"bot_id": None}, True, 0),
        ({"user": None}, True, 0),
    ],
)
async def test_a_bots_message_is_left_and_slack_asked_once(
    more: dict[str, Any], answered: bool, asked: int
) -> None:
    client, message = Client(), {**MENTION, **more}
    expected = "answered" if answered else Complete(BY_BOT)
    assert await handled(client, message, message) == [expected] * 2
    assert client.asked == asked


async def test_a_bots_message_is_handled_by_a_setting_or_where_slack_says_nothing() -> None:
    message = {**MENTION, "user": "UBOT"}
    assert await handled(Client(), message, bots=True) == ["answered"]
    assert await handled(Client(error="missing_scope"), message) == ["answered"]

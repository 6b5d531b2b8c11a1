"""What a handler may answer, by the kind of its event, and whether a trigger has expired."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from slack_sdk.models.blocks import SectionBlock

from surelane_worker import Context, Event, Handlers
from surelane_worker.errors import AnswerError, HandlersError
from surelane_worker.handling.answers import LARGEST, answer_text
from surelane_worker.handling.attempt import Attempt, Services
from surelane_worker.handling.registry import registered_in

COMMAND, VIEW = "slack.command.deploy", "slack.view_submission"
OPTIONS, CLICK = "slack.block_suggestion", "slack.block_actions"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(minutes=10)


@pytest.mark.parametrize(
    ("kind", "parts", "answer"),
    [
        (COMMAND, {}, None),
        (CLICK, {"text": None}, None),
        (COMMAND, {"text": "done", "response_type": "in_channel"}, None),
        (COMMAND, {"text": ""}, None),
        (
            COMMAND,
            {"blocks": [SectionBlock(text="hi")]},
            {"blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "hi"}}]},
        ),
        (VIEW, {"errors": {"name": "taken"}}, {"response_action": "errors", "errors": {"name": "taken"}}),
        (VIEW, {"response_action": "clear"}, None),
        (VIEW, {"response_action": "push", "view": {"type": "modal"}}, None),
        (OPTIONS, {"options": []}, None),
        (OPTIONS, {"option_groups": [{}] * 100}, None),
    ],
)
def test_answers_that_a_kind_takes(kind: str, parts: dict[str, Any], answer: object) -> None:
    expected = parts if answer is None and any(part is not None for part in parts.values()) else answer
    assert json.loads(answer_text(kind, None, parts)) == expected


@pytest.mark.parametrize(
    ("kind", "parts", "reason"),
    [
        (COMMAND, {"errors": {"a": "b"}}, "cannot hold errors; it takes only text, blocks, response_type"),
        (COMMAND, {"text": "x", "response_type": "all"}, "is 'ephemeral' or 'in_channel', not 'all'"),
        (COMMAND, {"response_type": "ephemeral"}, "response_type needs text or blocks"),
        (COMMAND, {"text": object()}, "cannot hold a object"),
        (VIEW, {"text": "x"}, "it takes only response_action, errors, view"),
        (VIEW, {"view": {"type": "modal"}}, "response_action is"),
        (VIEW, {"response_action": "close"}, "not 'close'"),
        (VIEW, {"response_action": "errors", "errors": {}}, "'errors' needs errors"),
        (VIEW, {"response_action": "errors", "errors": ["x"]}, "errors maps the block_id"),
        (VIEW, {"response_action": "update"}, "'update' needs view"),
        (VIEW, {"response_action": "clear", "view": {"type": "modal"}}, "'clear' cannot hold view"),
        (OPTIONS, {"options": [], "option_groups": []}, "options or option_groups, not both"),
        (OPTIONS, {"options": [{}] * 101}, "Slack takes 100 options, not 101"),
        (OPTIONS, {"options": "none"}, "options must be a list, not str"),
        (CLICK, {"text": "x"}, "it takes nothing: call ack"),
        ("slack.app_mention", {"text": "x"}, "it takes nothing"),
    ],
)
def test_answers_that_a_kind_does_not_take(kind: str, parts: dict[str, Any], reason: str) -> None:
    with pytest.raises(AnswerError, match=reason):
        answer_text(kind, None, parts)


def test_whole_body_is_sent_as_it_is_without_parts_and_is_bounded() -> None:
    bodies: tuple[Any, ...] = ({}, {"text": "x", "anything": [1]}, "", "text", "\ud800")
    for body in bodies:
        assert json.loads(answer_text("slack.app_mention", body, {})) == body
    with pytest.raises(AnswerError, match="a body or text, not both"):
        answer_text(COMMAND, {"text": "x"}, {"text": "y"})
    with pytest.raises(AnswerError, match="at most"):
        answer_text(COMMAND, "x" * LARGEST, {})


@pytest.mark.parametrize(("age", "expired"), [(0.5, False), (3.5, True)])
async def test_trigger_expires_by_the_time_at_which_it_was_stored(age: float, expired: bool) -> None:
    stored = NOW - timedelta(seconds=age)
    settings = SimpleNamespace(lease=LEASE)
    services = cast("Services", SimpleNamespace(settings=settings, loop=asyncio.get_running_loop()))

    def context(payload: object) -> Context:
        event = Event(1, CLICK, stored, 1, 1, NOW + LEASE, json.dumps(payload))
        return Context(Attempt(services, [event], SimpleNamespace(stopped=None)))

    assert context({"trigger_id": "1.2"}).trigger_expired is expired
    assert not context({}).trigger_expired


def test_only_commands_and_interactions_can_be_answered_or_ordered_in_slots_of_their_own() -> None:
    async def handle(event: Event, ctx: Context) -> None: ...

    for answers in (True, False):
        with pytest.raises(HandlersError, match="for commands and interactions"):
            Handlers().on("slack.app_mention", answers=answers, ordered=not answers)(handle)
    with pytest.raises(HandlersError, match="all 'slack\\.block_actions' are in order, or none"):
        Handlers().action("stop", ordered=True)
    handlers = Handlers()

    @handlers.on("slack.app_mention", "slack.block_actions")
    async def both(event: Event, ctx: Context) -> None: ...

    @handlers.command("/deploy", answers=True)
    async def deploy(event: Event, ctx: Context) -> None: ...

    @handlers.command("/next", ordered=True)
    async def following(event: Event, ctx: Context) -> None: ...

    found = {kind: handler for handler in registered_in(handlers).all() for kind in handler.kinds}
    assert {kind for kind, handler in found.items() if handler.interactive} == {CLICK, COMMAND}
    assert {kind for kind, handler in found.items() if handler.waits} == set(found) - {"slack.app_mention"}
    assert found["slack.command.deploy"].answers

"""Slack beyond its reference: errors after work that was done, refused streams, threads that are gone."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from time import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from slack_sdk.web.async_client import AsyncWebClient
from structlog.testing import capture_logs

from surelane.calls import Connection
from surelane_bolt.calls import SlackCalls
from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_worker.handling.context import Context
from surelane_worker.slack.client import ThreadGoneError
from surelane_worker.slack.notes import REMOVED, Notebooks
from surelane_worker.slack.replies import Replies
from surelane_worker.slack.stream import close_stream
from tests.system.slack_attempts import Attempt, Attempts, cut, slack_attempts, streamed

MODAL = {"type": "modal", "title": {"type": "plain_text", "text": "Ask"}, "blocks": []}


@pytest.fixture
async def attempts(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Attempts]:
    monkeypatch.setattr("surelane_worker.slack.notes.PAUSES", (0.01, 0.01))
    async with slack_attempts(connection) as made:
        yield made


async def _stands() -> None:
    """Find that the claim stands."""


def bolt(attempts: Attempts, attempt: Attempt, method: str, **given: Any) -> Awaitable[Any]:
    """Make a call of a Bolt app's client."""
    log, clients = get_logger("test"), attempts.clients
    notebooks = Notebooks(Engine(attempts.connection), log)
    made = SimpleNamespace(clients=clients, notebooks=notebooks, check_claim=_stands, log=log)
    made.replies_through = lambda clients, first: Replies(clients, notebooks, log, _stands, first=first)
    client = AsyncWebClient("xoxb-any", attempts.slack.api)
    return SlackCalls(attempt[0], Context(cast("Any", made))).send(0, client, method, {"json": given})


Act = Callable[[Attempts, Attempt], Awaitable[Any]]


def of_bolt(method: str, **given: Any) -> Act:
    """Return a call of a Bolt app in the channel, or with the event's trigger."""

    def act(attempts: Attempts, attempt: Attempt) -> Awaitable[Any]:
        trigger, room = attempt[0].payload.get("trigger_id"), attempts.slack.room().id
        place = {"trigger_id": trigger} if method.startswith("views.") else {"channel": room}
        return bolt(attempts, attempt, method, **place, **given)

    return act


async def share(attempts: Attempts, attempt: Attempt) -> None:
    file = attempts.slack.simulator.files.begin("report.txt", 4)
    file.content = b"text"
    room, files = attempts.slack.room().id, json.dumps([{"id": file.id}])
    await bolt(attempts, attempt, "files.completeUploadExternal", channel_id=room, files=files)


def shown(attempts: Attempts) -> int:
    """Return how much of the bot people see, or will."""
    simulator = attempts.slack.simulator
    return (
        len(attempts.said)
        + len(list(simulator.interactions.views.values()))
        + len(simulator.scheduled.messages)
    )


ADA = "U0ADA00001"
ONCE: dict[str, tuple[str, Act]] = {
    "reply": ("chat.postMessage", lambda _, to: to[1].reply(to[0], "one")),
    "whisper": ("chat.postEphemeral", lambda _, to: to[1].whisper(to[0], "one")),
    "begun stream": ("chat.startStream", lambda _, to: streamed(to, "one ", "two", interval=0)),
    "longer stream": ("chat.appendStream", lambda _, to: streamed(to, "one ", "two", interval=0)),
    "ended stream": ("chat.stopStream", lambda _, to: streamed(to, "one ", "two", interval=0)),
    "file": ("files.completeUploadExternal", lambda _, to: to[1].upload(to[0], b"one", filename="x")),
    "modal": ("views.open", lambda _, to: to[1].open_view(to[0], MODAL)),
    "Bolt's say": ("chat.postMessage", of_bolt("chat.postMessage", text="one")),
    "Bolt's whisper": ("chat.postEphemeral", of_bolt("chat.postEphemeral", user=ADA, text="one")),
    "Bolt's later": (
        "chat.scheduleMessage",
        of_bolt("chat.scheduleMessage", post_at=int(time()) + 3600, text="one"),
    ),
    "Bolt's modal": ("views.open", of_bolt("views.open", view=MODAL)),
    "Bolt's file": ("files.completeUploadExternal", share),
}


@pytest.mark.parametrize("what", ONCE)
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "answer_lost"},
        *({"kind": "done_but_failed", "error": each} for each in ("fatal_error", "internal_error")),
        {"kind": "done_but_failed", "error": "request_timeout"},
        {"kind": "garbled"},
    ],
    ids=lambda fault: "-".join(fault.values()),
)
async def test_what_slack_has_done_without_saying_so_is_not_done_again(
    attempts: Attempts, what: str, fault: dict[str, str]
) -> None:
    method, act = ONCE[what]
    attempt = await (attempts.command() if "modal" in what else attempts.mention())
    attempts.slack.fail(fault["kind"], method, error=fault.get("error", ""))
    await act(attempts, attempt)
    assert not attempts.slack.simulator.faults.active
    assert shown(attempts) == 1
    assert "stream" not in what or attempts.thread == ["one two"]
    assert not any(message.streaming for message in attempts.said)


REFUSALS = [
    *("user_not_found", "missing_recipient_user_id", "channel_type_not_supported", "not_allowed_token_type"),
    *("msg_too_long", "invalid_blocks", "an_error_of_tomorrow"),
]


@pytest.mark.parametrize("error", REFUSALS)
@pytest.mark.parametrize("methods", ["start", "append", "stop", "append stop", "append stop update"])
async def test_text_of_a_stream_that_slack_refuses_is_posted_plainly_once(
    attempts: Attempts, methods: str, error: str
) -> None:
    attempt = await attempts.mention()
    for each in methods.split():
        method = "chat.update" if each == "update" else f"chat.{each}Stream"
        attempts.slack.fail("refused", method, error=error, count=None)
    for _ in range(2):
        await streamed(attempt, "one ", "two ", "three", interval=0, blocks=[{"type": "divider"}])
        assert attempts.thread == ["one two three"]
        (message,) = attempts.said
        assert (message.streaming, message.thread_ts) == (False, attempt[0].slack["ts"])
        attempt = await attempts.next()


async def test_refused_stream_keeps_long_text_and_no_tasks_alone_and_goes_on_in_a_later_attempt(
    attempts: Attempts,
) -> None:
    attempts.slack.fail("refused", "chat.startStream", error="user_not_found", count=None)
    attempt = await attempts.mention()
    task = {"type": "task_update", "id": "1", "title": "Look", "status": "complete"}
    async with attempt[1].stream(attempt[0]) as stream:
        await stream.append(chunks=[task])
    assert attempts.said == []
    await streamed(await attempts.next(), "word " * 5_000, fails=True)
    await streamed(await attempts.next(), "word " * 5_000)
    assert "".join(attempts.thread) == "word " * 5_000
    assert len(attempts.said) == 3


async def test_blocks_that_slack_refuses_do_not_take_the_text_with_them(attempts: Attempts) -> None:
    await streamed(await attempts.mention(), "one & <!here> ", "two", blocks=[{"type": "of tomorrow"}])
    (message,) = attempts.said
    assert (message.text, message.streaming) == ("one &amp; <!here> two", False)


@pytest.mark.parametrize("updates", [True, False])
async def test_stream_of_an_event_that_ended_is_replaced_where_slack_does_not_end_it(
    attempts: Attempts, *, updates: bool
) -> None:
    await streamed(await attempts.mention(), "one ", fails=True)
    (message,) = attempts.said
    message.streaming = not updates
    attempts.slack.fail("refused", "chat.stopStream", error="an_error_of_tomorrow", count=None)
    await close_stream(attempts.clients.client, message.channel, message.thread_ts, message.ts)
    (shown,) = attempts.said
    assert (shown.text, shown.streaming) == ("one ", False)


GONE: dict[str, Act] = {
    **{what: ONCE[what][1] for what in ("reply", "whisper", "begun stream", "file")},
    "Bolt's say": lambda on, to: of_bolt("chat.postMessage", text="one", thread_ts=to[0].slack["ts"])(on, to),
    "Bolt's stream": lambda on, to: of_bolt(
        "chat.startStream", recipient_team_id="T", recipient_user_id=ADA, thread_ts=to[0].slack["ts"]
    )(on, to),
    "Bolt's whisper": lambda on, to: of_bolt(
        "chat.postEphemeral", text="one", user=ADA, thread_ts=to[0].slack["ts"]
    )(on, to),
    "Bolt's later": lambda on, to: of_bolt(
        "chat.scheduleMessage", text="one", post_at=int(time()) + 3600, thread_ts=to[0].slack["ts"]
    )(on, to),
}


@pytest.mark.parametrize("what", GONE)
@pytest.mark.parametrize("fault", [None, "chat.startStream", "chat.delete"])
async def test_nothing_is_left_in_the_channel_where_the_question_was_deleted(
    attempts: Attempts, what: str, fault: str | None
) -> None:
    event, _ = attempt = await attempts.mention()
    attempts.slack.simulator.workspace.delete(attempts.slack.room().messages[event.slack["ts"]])
    if fault:
        error = {"chat.delete": "cant_delete_message", "chat.startStream": "invalid_thread_ts"}[fault]
        attempts.slack.fail("refused", fault, error=error)
    with pytest.raises(ThreadGoneError):
        await GONE[what](attempts, attempt)
    assert not [text for text in attempts.thread if text != REMOVED]
    assert fault == "chat.delete" or shown(attempts) == 0


async def test_reply_that_slack_put_beside_its_thread_as_the_attempt_ended_is_found_and_removed(
    attempts: Attempts,
) -> None:
    event, slack = await attempts.mention()
    attempts.slack.simulator.workspace.delete(attempts.slack.room().messages[event.slack["ts"]])
    attempts.slack.fail("slow", "chat.postMessage", delay=600)
    await cut(slack.reply(event, "one"), lambda: attempts.said)
    event, slack = await attempts.next()
    with pytest.raises(ThreadGoneError):
        await slack.reply(event, "one")
    assert attempts.said == []


async def test_reply_in_a_thread_whose_first_message_left_replies_stays(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    await slack.reply(event, "one")
    attempts.slack.simulator.workspace.delete(attempts.slack.room().messages[event.slack["ts"]])
    await slack.reply(event, "two")
    await slack.upload(event, b"three", filename="x")
    assert {message.thread_ts for message in attempts.said} == {event.slack["ts"]}
    assert len(attempts.said) == 3


async def test_reply_to_another_channel_begins_a_message_there(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    direct = attempts.slack.simulator.workspace.direct_messages(ADA)
    await slack.reply(event, "one", channel=direct.id)
    assert [message.thread_ts for message in direct.messages.values()] == [None]


async def within(attempts: Attempts, sort: str, *, ephemeral: bool = False) -> Attempt:
    """Let a person click, or type a command, inside of a thread, and claim the event."""
    slack, room = attempts.slack, attempts.slack.room()
    workspace = slack.simulator.workspace
    first = workspace.post(room, slack.user().id, "first")
    alone = slack.user().id if ephemeral else None
    asked = workspace.post(
        room,
        workspace.bot.id,
        "?",
        by_app=True,
        visible_to=alone,
        thread_ts=first.ts if sort != "root" else None,
    )
    payload = slack.click(asked, {"type": "button", "action_id": "yes", "block_id": "b", "value": "1"})
    if sort == "command":
        payload = slack.command("/x") | {"thread_ts": first.ts}
    if sort in ("interactive_message", "message_action"):
        message, _ = payload.pop("message"), payload.pop("container")
        shown = "message" if sort == "message_action" else "original_message"
        payload |= {"type": sort, "message_ts": asked.ts, shown: message}
    await slack.store(payload)
    return await attempts.next()


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("response_type", ["ephemeral", "in_channel"])
@pytest.mark.parametrize(
    ("sort", "ephemeral"),
    [
        *(("click", False), ("click", True), ("command", False), ("root", False), ("root", True)),
        *(("interactive_message", False), ("message_action", False)),
    ],
)
async def test_answer_to_a_click_or_command_inside_a_thread_stands_in_the_thread(
    attempts: Attempts, sort: str, response_type: str, *, ephemeral: bool, expired: bool
) -> None:
    event, slack = await within(attempts, sort, ephemeral=ephemeral)
    if expired:
        attempts.expire()
    await slack.reply(event, "answer", response_type=response_type)
    asked, *answers = attempts.said
    assert asked.text == "?"
    if expired and response_type == "ephemeral":
        assert (answers, attempts.direct) == ([], ["answer"])
        return
    (answer,) = answers
    begun = asked.ts if expired and not ephemeral else None  # chat.postMessage begins a thread
    assert answer.thread_ts == (begun if sort == "root" else next(iter(attempts.slack.room().messages)))
    assert (answer.visible_to is None) == (response_type == "in_channel")


async def test_answer_in_a_thread_may_replace_the_clicked_message_or_stand_elsewhere(
    attempts: Attempts,
) -> None:
    event, slack = await within(attempts, "click")
    await slack.reply(event, "decided", replace_original=True)
    await slack.reply(event, "for all", response_type="in_channel", thread_ts=None)
    decided, public = attempts.said
    assert (decided.text, public.thread_ts) == ("decided", None)
    await slack.reply(event, delete_original=True)
    assert attempts.said == [public]


@pytest.mark.parametrize("kind", ["refused", "answer_lost", "garbled"])
async def test_refused_decoration_fails_nothing(attempts: Attempts, kind: str) -> None:
    event, slack = await attempts.mention()
    attempts.slack.fail(kind, error="missing_scope", count=None)
    with capture_logs() as logs:
        await slack.set_status(event, "thinks")
        await slack.set_title(event, "Deploys")
        await slack.set_suggested_prompts(event, {"Deploy": "Deploy api, please"})
        await slack.react(event, "eyes")
        await slack.react(replace(event, body="{}"), "eyes")
    assert [each["log_level"] for each in logs] == ["warning"] * 5


LOOK: list[Any] = [
    {"type": "task_update", "id": str(number), "title": "Look", "status": "complete", "output": "x" * 90}
    for number in range(60)
]


@pytest.mark.parametrize(
    ("text", "chunks", "messages"),
    [
        ("日本語の文。" * 2_000, [], 4),
        ("🙂" * 5_000, [], 2),
        ("word " * 1_990, LOOK[:3], 2),
        ("one", LOOK, 2),
    ],
)
async def test_stream_goes_on_in_another_message_before_slack_finds_it_too_long(
    attempts: Attempts, text: str, chunks: list[Any], messages: int
) -> None:
    event, slack = await attempts.mention()
    with capture_logs() as logs:
        async with slack.stream(event, interval=0) as stream:
            await stream.append(chunks=chunks[:30])
            await stream.append(chunks=chunks[30:])
            await stream.append(text)
    assert "".join(attempts.thread) == text
    assert sum(len(message.tasks) for message in attempts.said) == len(chunks)
    assert (logs, len(attempts.said)) == ([], messages)

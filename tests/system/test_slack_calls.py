"""What a handler asks of Slack, attempt by attempt: streams, modals, files, and replies that are on the row."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.models.blocks import ContextActionsBlock, FeedbackButtonsElement
from slack_sdk.models.blocks.basic_components import FeedbackButtonObject
from slack_sdk.models.messages.chunk import TaskUpdateChunk
from structlog.testing import capture_logs

from surelane.calls import Connection
from surelane_dev.simulator.workspace.model import Message
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import story_of
from surelane_service.outbound import Reply
from surelane_worker.slack.client import NoTriggerError, NowhereToReplyError, ReplyOrderError
from surelane_worker.slack.limits import SlackBusyError
from tests.processes import until
from tests.system.slack_attempts import Attempt, Attempts, cut, slack_attempts, streamed

MODAL = {"type": "modal", "title": {"type": "plain_text", "text": "Ask"}, "blocks": []}
FEEDBACK = ContextActionsBlock(
    elements=[
        FeedbackButtonsElement(
            action_id="feedback",
            positive_button=FeedbackButtonObject(text="Good", value="good"),
            negative_button=FeedbackButtonObject(text="Bad", value="bad"),
        )
    ]
)


def kinds(message: Message) -> list[str]:
    return [block["type"] for block in message.blocks]


@pytest.fixture
async def attempts(connection: Connection) -> AsyncIterator[Attempts]:
    async with slack_attempts(connection) as made:
        yield made


async def test_handler_reads_no_mark_on_any_page_of_a_thread(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    own = {"event_type": "order", "event_payload": {"id": 8}}
    for metadata in (None, own):
        await slack.reply(event, "here", metadata=metadata)
    thread: dict[str, Any] = {"channel": event.slack["channel"], "ts": event.slack["ts"]}
    first = await slack.client.conversations_replies(**thread, include_all_metadata=True, limit=1)
    pages = [page["messages"] async for page in first]
    assert len(pages) > 1
    read = {message["ts"]: message.get("metadata") for page in pages for message in page}
    assert list(read.values()) == [None, None, own]
    assert all("surelane_reply" in str(message.metadata) for message in attempts.said)


async def test_later_attempt_knows_from_the_row_which_replies_were_sent(attempts: Attempts) -> None:
    await attempts.mention()
    event, slack = await attempts.next()  # one that failed before its reply costs no lookup
    sent = await slack.reply(event, "first")
    for _ in range(2):
        event, slack = await attempts.next()
        assert await slack.reply(event, "first") == sent
    await slack.reply(event, "second")
    assert attempts.thread == ["first", "second"]
    assert attempts.calls() == ["chat.postMessage"] * 2
    (message, _), key = attempts.said, event.key
    assert message.thread_ts == event.slack["ts"]
    mark = {"event_id": key, "ordinal": 0}
    assert message.metadata == {"event_type": "surelane_reply", "event_payload": mark}
    job = await Changes(attempts.connection).get(event.id)
    assert job is not None
    told = [step.detail for step in story_of(job) if step.what == "replied"]
    assert told == [f"message {reply.ts} in {reply.channel}" for reply in attempts.said]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("answer_lost", ""),
        ("server_error", ""),
        ("rate_limited", ""),
        ("refused", "ratelimited"),
        ("refused", "rate_limited"),
    ],
)
async def test_reply_that_slack_did_not_take_or_answer_is_sent_by_the_same_attempt(
    attempts: Attempts, kind: str, error: str
) -> None:
    event, slack = await attempts.mention()
    attempts.slack.fail(kind, "chat.postMessage", error=error)
    await slack.reply(event, "one")
    assert attempts.thread == ["one"]


LIMITED: dict[str, Callable[[Attempt], Awaitable[object]]] = {
    "reply": lambda to: to[1].reply(to[0], "one"),
    "whisper": lambda to: to[1].whisper(to[0], "one"),
    "stream": lambda to: streamed(to, "one"),
    "file": lambda to: to[1].upload(to[0], b"one", filename="x"),
    "plain client": lambda to: to[1].client.users_info(user=to[0].slack["user"]),
}


@pytest.mark.parametrize(
    ("what", "asked", "after"),
    [
        *((what, 600, 600) for what in LIMITED),
        *(("plain client", asked, 3600) for asked in ("1000000000", "Fri, 31 Dec 9999 23:59:59 GMT")),
    ],
)
async def test_call_for_which_slack_asks_a_long_pause_is_put_off_and_keeps_no_slot(
    attempts: Attempts, what: str, asked: object, after: float
) -> None:
    attempt = await attempts.mention()
    attempts.slack.fail("rate_limited", count=None, retry_after=asked)
    with pytest.raises(SlackBusyError) as raised:
        await LIMITED[what](attempt)
    attempts.slack.simulator.faults.remove()
    await LIMITED[what](await attempts.next())
    assert (raised.value.after, len(attempts.said)) == (after, int(what != "plain client"))


async def test_pauses_of_one_call_are_not_longer_together_and_a_broken_one_is_short(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    event, slack = await attempts.mention()
    attempts.slack.fail("rate_limited", retry_after="soon")
    await slack.reply(event, "one")
    monkeypatch.setattr("surelane_worker.slack.client.LONGEST_WAIT", 1.5)
    attempts.slack.fail("rate_limited", count=None)
    with pytest.raises(SlackBusyError):
        await slack.reply(event, "two")
    assert attempts.calls() == ["chat.postMessage"] * 4


async def test_answer_for_which_slack_asks_a_long_pause_is_put_off(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def limited(*_: object) -> Reply:
        return Reply(429, "identity", 600.0, b"")

    event, slack = await attempts.command()
    monkeypatch.setattr(attempts.clients.responses, "post", limited)
    with pytest.raises(SlackBusyError):
        await slack.reply(event, "three")


async def test_reactions_may_be_repeated(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    for name in ("eyes", ":eyes:"):
        await slack.react(event, name)
    await slack.set_status(event, "thinks")
    message = attempts.slack.room().messages[event.slack["ts"]]
    assert list(message.reactions) == ["eyes"]


@pytest.mark.parametrize("method", ["chat.postMessage", "chat.startStream"])
async def test_what_was_being_sent_when_the_attempt_ended_is_looked_for(
    attempts: Attempts, method: str
) -> None:
    event, slack = await attempts.mention()
    attempts.slack.fail("slow", method, delay=600)
    posts = method == "chat.postMessage"
    await cut(
        slack.reply(event, "one") if posts else slack.stream(event).append("one "), lambda: attempts.said
    )
    for _ in range(2):
        event, slack = again = await attempts.next()
        await (slack.reply(event, "one") if posts else streamed(again, "one two"))
    assert attempts.thread == ["one" if posts else "one two"]
    assert attempts.calls("conversations.replies") == ["conversations.replies"]


@pytest.mark.parametrize("streams", [False, True])
async def test_what_was_refused_is_sent_by_the_next_attempt_without_a_lookup(
    attempts: Attempts, *, streams: bool
) -> None:
    for _ in range(2):
        event, slack = attempt = await (attempts.next() if attempts.calls() else attempts.mention())
        attempts.slack.fail("invalid_auth", count=None)
        with pytest.raises(SlackApiError):
            await (streamed(attempt, "one") if streams else slack.reply(event, "one"))
    attempts.slack.simulator.faults.remove()
    event, slack = again = await attempts.next()
    await (streamed(again, "one") if streams else slack.reply(event, "one"))
    assert (attempts.thread, attempts.calls("conversations.replies")) == (["one"], [])


async def test_five_answers_go_through_a_response_url_and_the_sixth_to_the_person(attempts: Attempts) -> None:
    for begun in (attempts.command, attempts.next):
        event, slack = await begun()
        sent = [await slack.reply(event, str(number), response_type="in_channel") for number in range(5)]
        assert sent == [None] * 5
        await slack.reply(event, "5")
    assert (attempts.thread, attempts.direct) == (["0", "1", "2", "3", "4"], ["5"])


async def test_answer_after_thirty_minutes_goes_to_the_person_unless_it_is_for_all(
    attempts: Attempts,
) -> None:
    event, slack = await attempts.command()
    attempts.expire()
    sent = await slack.reply(event, "done")
    await slack.reply(event, "for all", response_type="in_channel")
    workspace = attempts.slack.simulator.workspace
    workspace.channels[event.payload["channel_id"]].members.remove(workspace.bot.id)
    await slack.reply(event, "more", response_type="in_channel")
    event, slack = await attempts.next()
    assert await slack.reply(event, "done") == sent
    assert (attempts.thread, attempts.direct) == (["for all"], ["done", "more"])


async def test_late_answer_is_shown_in_the_channel_where_direct_messages_are_off(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(**_: object) -> None:
        raise SlackApiError("off", {"ok": False, "error": "messages_tab_disabled"})  # type: ignore[no-untyped-call]

    event, slack = await attempts.command()
    attempts.expire()
    monkeypatch.setattr(attempts.clients.once, "chat_postMessage", refuse)
    await slack.reply(event, "done")
    (message,) = attempts.said
    assert (message.text, message.visible_to) == ("done", event.payload["user_id"])
    event, slack = await attempts.next()
    await slack.reply(event, "done")
    assert attempts.thread == ["done"]


async def test_late_answer_to_a_click_replaces_or_deletes_its_message(attempts: Attempts) -> None:
    event, slack = await attempts.click()
    attempts.expire()
    await slack.reply(event, "decided", replace_original=True)
    assert (attempts.thread, attempts.direct) == (["decided"], [])
    await slack.reply(event, delete_original=True)
    assert (attempts.thread, attempts.direct) == ([], [])
    await slack.reply(event, "gone", replace_original=True)
    assert (attempts.thread, attempts.direct) == ([], ["gone"])


@pytest.mark.parametrize("length", [4_001, 40_000])
async def test_late_answer_that_chat_update_does_not_take_replaces_the_message_by_blocks(
    attempts: Attempts, length: int
) -> None:
    event, slack = await attempts.click()
    attempts.expire()
    text = "word " * (length // 5) + "x" * (length % 5)
    await slack.reply(event, text, replace_original=True)
    (message,) = attempts.said
    assert "".join(block["text"]["text"] for block in message.blocks) == text
    assert attempts.direct == []
    await slack.reply(event, text, replace_original=True, blocks=[{"type": "divider"}])
    assert kinds(message) == ["divider"]


async def test_replies_at_once_are_all_noted(attempts: Attempts) -> None:
    for begun in (attempts.mention, attempts.next):
        event, slack = await begun()
        await asyncio.gather(*(slack.reply(event, str(number)) for number in range(5)))
    assert sorted(attempts.thread) == ["0", "1", "2", "3", "4"]
    assert attempts.calls() == ["chat.postMessage"] * 5


ORDERS: list[tuple[str, str, list[str]]] = [
    ("a", "ab", ["a", "b"]),
    ("ab", "ba", ["a", "b"]),
    ("ab", "bac", ["a", "b", "c"]),
    ("aa", "aaa", ["a", "a", "a"]),
    ("ab", "xb", ["a", "b"]),  # worded anew
    ("abc", "cab", ["a", "b", "c"]),
]


@pytest.mark.parametrize(("first", "second", "sent"), ORDERS)
async def test_replies_in_another_order_are_known_by_what_they_say(
    attempts: Attempts, first: str, second: str, sent: list[str]
) -> None:
    for begun, texts in ((attempts.mention, first), (attempts.next, second), (attempts.next, first)):
        event, slack = await begun()
        for text in texts:
            await slack.reply(event, text)
    assert attempts.thread == sent


async def test_reply_that_was_taken_for_another_is_told(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    await slack.reply(event, "b")  # "a" was not sent when the worker died
    event, slack = await attempts.next()
    await slack.reply(event, "a")
    with pytest.raises(ReplyOrderError):
        await slack.reply(event, "b")
    event, slack = await attempts.next()
    for text in "ba":
        await slack.reply(event, text)
    assert attempts.thread == ["b", "a"]


@pytest.mark.parametrize(
    ("texts", "interval", "called"),
    [
        ([f"{word} " for word in range(15)], 3600, ["startStream", "stopStream"]),
        (["one ", "two ", "three"], 0, ["startStream", "appendStream", "appendStream", "stopStream"]),
        ([""], 3600, []),
    ],
    ids=["gathers words for its interval", "without an interval sends each", "of nothing posts nothing"],
)
async def test_stream(attempts: Attempts, texts: list[str], interval: float, called: list[str]) -> None:
    await streamed(await attempts.mention(), *texts, interval=interval)
    assert attempts.calls() == [f"chat.{method}" for method in called]
    assert attempts.thread == ["".join(texts)] * bool(called)


async def test_stream_sends_the_first_words_at_once_and_others_although_the_handler_says_nothing_more(
    attempts: Attempts,
) -> None:
    event, slack = await attempts.mention()
    async with slack.stream(event, interval=0.05) as stream:
        await stream.append("one ")
        assert attempts.thread == ["one "]
        await stream.append("two ")
        await until(lambda: attempts.thread == ["one two "], what="the second word")
        await stream.append("three ")
        await until(lambda: attempts.thread == ["one two three "], what="the third word")
    assert attempts.calls().count("chat.appendStream") == 2


LONG = "".join(f"line {number:04}\n" for number in range(5000))
"""50,000 characters, which one message of Slack's cannot hold."""


async def test_long_text_goes_on_in_further_messages(attempts: Attempts) -> None:
    await streamed(await attempts.mention(), LONG[:30_005], LONG[30_005:], blocks=[FEEDBACK])
    assert len(attempts.thread) == 5
    assert "".join(attempts.thread) == LONG
    *others, last = attempts.said
    assert kinds(last) == ["context_actions"]
    assert not any(message.streaming or message.blocks for message in others)


async def test_long_text_is_cut_between_lines_or_words(attempts: Attempts) -> None:
    text = "word " * 1_999 + "longer\n" + "word " * 2_001 + "x" * 20_000
    await streamed(await attempts.mention(), text)
    first, second, *rest = attempts.thread
    assert (first, second) == ("word " * 1_999, "longer\n" + "word " * 1_998)
    assert "".join(rest) == "word " * 3 + "x" * 20_000
    assert len(rest) == 3


@pytest.mark.parametrize("said", [3, 12_345, 25_000])
async def test_long_text_that_broke_off_is_finished_by_a_later_attempt(attempts: Attempts, said: int) -> None:
    await streamed(await attempts.mention(), "other words " + LONG[:said], interval=0, fails=True)
    for _ in range(2):
        await streamed(await attempts.next(), LONG[:26_000], LONG[26_000:], interval=0)
    assert "".join(attempts.thread) == LONG
    assert not any(message.streaming for message in attempts.said)
    assert attempts.calls("conversations.replies") == []


async def test_later_attempt_that_says_less_removes_the_messages_of_the_earlier_one(
    attempts: Attempts,
) -> None:
    await streamed(await attempts.mention(), LONG[:35_000], interval=0, fails=True)
    for _ in range(2):
        await streamed(await attempts.next(), "short")
    assert attempts.thread == ["short"]


async def test_stream_takes_chunks_and_ends_with_blocks(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    async with slack.stream(event, interval=3600) as stream:
        await stream.append("Looking. ", chunks=[TaskUpdateChunk(id="1", title="Look", status="in_progress")])
        await stream.append("Found.", chunks=[{"type": "task_update", "id": "1", "status": "complete"}])
        await stream.stop(blocks=[FEEDBACK])
    (message,) = attempts.said
    assert message.text == "Looking. Found."
    assert [(task["title"], task["status"]) for task in message.tasks] == [("Look", "complete")]
    assert kinds(message) == ["context_actions"]


async def test_later_attempt_ends_the_stream_of_an_earlier_one_with_the_same_blocks(
    attempts: Attempts,
) -> None:
    await streamed(await attempts.mention(), "one ", "two ", fails=True)
    await streamed(await attempts.next(), "one two three", blocks=[FEEDBACK])
    (message,) = attempts.said
    assert kinds(message) == ["markdown", "context_actions"]
    assert message.blocks[0]["text"] == message.text == "one two three"
    assert attempts.calls("conversations.replies", "chat.startStream") == ["chat.startStream"]


async def test_stream_that_slack_ended_is_finished_all_the_same(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    async with slack.stream(event, interval=0) as stream:
        await stream.append("one ")
        attempts.said[0].streaming = False
        await stream.append("two ")
        await stream.append("three")
    assert attempts.thread == ["one two three"]


async def test_error_of_what_slack_takes_in_no_way_reaches_the_handler(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    stream = slack.stream(event, interval=0.01)
    await stream.append("one ")
    attempts.slack.fail("invalid_auth", count=None)
    await stream.append("two ")
    await until(lambda: "chat.appendStream" in attempts.calls(), what="the second call")
    with pytest.raises(SlackApiError):
        await stream.stop()


async def test_modal_is_opened_once_and_a_second_one_needs_a_trigger_of_its_own(attempts: Attempts) -> None:
    event, slack = await attempts.command()
    opened = await slack.open_view(event, MODAL)
    event, slack = await attempts.next()
    assert await slack.open_view(event, MODAL) == opened
    assert attempts.calls() == ["views.open"]
    with pytest.raises(SlackApiError, match="exchanged_trigger_id"):
        await slack.open_view(event, MODAL)
    await slack.update_view(event, {**MODAL, "callback_id": "later"}, view_id=opened)
    (shown,) = attempts.slack.simulator.interactions.views.values()
    assert shown.content["callback_id"] == "later"


async def test_modal_whose_answer_was_lost_counts_as_opened(attempts: Attempts) -> None:
    event, slack = await attempts.command()
    attempts.slack.fail("slow", "views.open", delay=600)
    views = attempts.slack.simulator.interactions.views
    await cut(slack.open_view(event, MODAL), lambda: list(views.values()))
    for _ in range(2):
        event, slack = await attempts.next()
        assert await slack.open_view(event, MODAL) is None
    assert len(list(views.values())) == 1


async def test_a_mention_has_a_thread_for_title_and_prompts_and_no_trigger_for_a_modal(
    attempts: Attempts,
) -> None:
    event, slack = await attempts.mention()
    with pytest.raises(NoTriggerError):
        await slack.open_view(event, MODAL)
    with pytest.raises(NowhereToReplyError):
        await slack.update_view(event, MODAL)
    await slack.set_title(event, "Deploys")
    await slack.set_suggested_prompts(event, {"Deploy": "Deploy api, please"})
    methods = ["assistant.threads.setTitle", "assistant.threads.setSuggestedPrompts"]
    assert attempts.calls() == methods


async def test_file_is_uploaded_once(attempts: Attempts, tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    report.write_text("all well")
    event, slack = await attempts.mention()
    uploaded = await slack.upload(event, str(report), comment="the report")
    event, slack = await attempts.next()
    assert await slack.upload(event, str(report), comment="the report") == uploaded
    (message,) = attempts.said
    assert (message.text, message.thread_ts) == ("the report", event.slack["ts"])
    assert [(file["id"], file["title"]) for file in message.files] == [(uploaded, "report.txt")]
    await slack.upload(event, b"bytes", filename="second")
    (_, second) = attempts.said
    assert [file["name"] for file in second.files] == ["second"]
    stored = attempts.slack.simulator.files.find(uploaded)
    assert stored is not None
    assert stored.content == b"all well"


POSTS = "files.completeUploadExternal"


async def test_a_file_that_slack_takes_and_shares_nowhere_is_logged(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surelane_worker.slack.notes.LOOKS", (0.0, 0.01))
    event, slack = await attempts.mention()
    attempts.slack.fail("unshared", POSTS)
    with capture_logs() as lines:
        lost = await slack.upload(event, b"all well", filename="lost.txt")
        assert await slack.upload(event, b"all well", filename="found.txt") != lost
    assert [line["file"] for line in lines if "shared it nowhere" in line["event"]] == [lost]
    assert [file["name"] for message in attempts.said for file in message.files] == ["found.txt"]


@pytest.mark.parametrize(
    ("kind", "ends"),
    [("answer_lost", None), ("server_error", None), ("slow", "posted"), ("server_error", "called")],
)
async def test_file_is_posted_once_where_slack_did_not_answer_or_the_attempt_ended(
    attempts: Attempts, kind: str, ends: str | None
) -> None:
    report: dict[str, Any] = {"file": b"all well", "filename": "report.txt", "comment": "the report"}
    event, slack = await attempts.mention()
    attempts.slack.fail(kind, POSTS, delay=60.0)
    if ends:
        reached = {"posted": lambda: attempts.said, "called": lambda: attempts.calls(POSTS)}[ends]
        await cut(slack.upload(event, **report), reached)
        event, slack = await attempts.next()
    for _ in range(2):
        uploaded = await slack.upload(event, **report)
        (message,) = attempts.said
        assert [file["id"] for file in message.files] == [uploaded]
        event, slack = await attempts.next()


async def test_home_is_published_unless_it_changed_meanwhile(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    user = event.slack["user"]
    for callback in ("first", "second"):
        await slack.publish_home(user, {"type": "home", "callback_id": callback, "blocks": []})
    shown = attempts.slack.simulator.interactions.views.home(user)
    assert shown is not None
    assert shown.content["callback_id"] == "second"
    with pytest.raises(SlackApiError, match="hash_conflict"):
        await slack.publish_home(user, {"type": "home", "blocks": []}, hash="an older one")

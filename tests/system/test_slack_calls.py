"""What a handler asks of Slack, attempt by attempt: streams, modals, files, and replies that are on the row."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.models.blocks import ContextActionsBlock, FeedbackButtonsElement
from slack_sdk.models.blocks.basic_components import FeedbackButtonObject
from slack_sdk.models.messages.chunk import TaskUpdateChunk

from surelane.calls import Connection
from surelane.events import Event
from surelane_dev.simulator.posting.payloads import action_payload, command_form
from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_service.service_settings import load_settings
from surelane_worker.slack.client import NoTriggerError, NowhereToReplyError, SlackClients, slack_clients
from surelane_worker.slack.notes import Notebooks
from surelane_worker.slack.replies import Replies
from surelane_worker.worker_settings import WorkerSettings
from tests.processes import until
from tests.system.slack_stand import Stand, fault, shown, slack_stand

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


@dataclass(frozen=True)
class Attempts:
    """Claims events, and makes for each claim what its handler gets as ``ctx.slack``."""

    slack: Stand
    connection: Connection
    clients: SlackClients

    async def next(self) -> tuple[Event, Replies]:
        """Claim the event, again if its last claim was not settled: a new attempt."""
        await self.connection.execute("update agent.event set vt = agent.clock()")
        kinds = await self.connection.fetchval("select array_agg(distinct kind) from agent.event")
        (event,) = await Engine(self.connection).claim_events(
            kinds, 1, worker="w", max_attempts=10, invisible_for=timedelta(minutes=1)
        )
        log = get_logger("test")
        return event, Replies(self.clients, Notebooks(Engine(self.connection), log), log, _stands)

    async def mention(self, text: str = "hello") -> tuple[Event, Replies]:
        """Let a person mention the bot, and claim the event."""
        await self.slack.mention(text)
        return await self.next()

    async def command(self) -> tuple[Event, Replies]:
        """Let a person send a slash command, and claim the event."""
        workspace = self.slack.simulator.workspace
        ada, general = workspace.user("ada"), workspace.channel("general")
        assert ada is not None
        assert general is not None
        form = command_form(
            workspace, self.slack.simulator.interactions, command="/x", text="", channel=general, user=ada
        )
        await self.slack.queue.insert_event(json.dumps(dict(form)))
        return await self.next()

    async def click(self) -> tuple[Event, Replies]:
        """Let a person press a button of a message of the bot, and claim the event."""
        simulator = self.slack.simulator
        workspace, ada = simulator.workspace, simulator.workspace.user("ada")
        general = workspace.channel("general")
        assert ada is not None
        assert general is not None
        message = workspace.post(general, workspace.bot.id, "question", by_app=True)
        action = {"type": "button", "action_id": "yes", "block_id": "b", "value": "1"}
        payload = action_payload(workspace, simulator.interactions, message=message, user=ada, action=action)
        await self.slack.queue.insert_event(json.dumps(payload))
        return await self.next()

    def calls(self, *names: str) -> list[str]:
        """Return the methods that were called, by default all, oldest first."""
        called = [str(call["method"]) for call in self.slack.simulator.api.calls]
        return [name for name in called if not names or name in names]

    @property
    def thread(self) -> list[str]:
        """The texts of the bot's messages in the general channel."""
        general = self.slack.simulator.workspace.channel("general")
        assert general is not None
        return [shown(message) for message in general.messages.values() if message.by_app]


async def _stands() -> None:
    """Find that the claim stands."""


@pytest.fixture
async def attempts(connection: Connection) -> AsyncIterator[Attempts]:
    async with slack_stand(connection) as stand:
        settings = load_settings(WorkerSettings, database_url="postgresql://x@/x", slack_api_url=stand.api)
        async with slack_clients(settings, traced=False) as clients:
            yield Attempts(stand, connection, clients)


async def test_later_attempt_knows_from_the_row_which_replies_were_sent(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    sent = await slack.reply(event, "first")
    for _ in range(2):
        event, slack = await attempts.next()
        assert await slack.reply(event, "first") == sent
    await slack.reply(event, "second")
    assert attempts.thread == ["first", "second"]
    assert attempts.calls() == ["chat.postMessage"] * 2


async def test_attempt_that_failed_before_its_reply_costs_no_lookup(attempts: Attempts) -> None:
    await attempts.mention()
    event, slack = await attempts.next()
    await slack.reply(event, "first")
    assert attempts.calls() == ["chat.postMessage"]


async def test_reply_that_was_being_sent_when_the_attempt_ended_is_looked_for(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    attempts.slack.simulator.faults.add(fault("slow", methods=["chat.postMessage"]))
    posting = asyncio.create_task(slack.reply(event, "first"))
    await until(lambda: attempts.thread, what="the message")
    posting.cancel()
    await asyncio.wait([posting])
    for _ in range(2):
        event, slack = await attempts.next()
        await slack.reply(event, "first")
    assert attempts.thread == ["first"]
    assert attempts.calls("conversations.replies") == ["conversations.replies"]


async def test_refused_reply_is_posted_by_the_next_attempt_without_a_lookup(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    attempts.slack.simulator.faults.add(fault("invalid_auth", methods=["chat.postMessage"]))
    with pytest.raises(SlackApiError):
        await slack.reply(event, "first")
    event, slack = await attempts.next()
    await slack.reply(event, "first")
    assert (attempts.thread, attempts.calls("conversations.replies")) == (["first"], [])


async def test_answer_through_a_response_url_is_not_repeated(attempts: Attempts) -> None:
    event, slack = await attempts.command()
    await slack.reply(event, "done", response_type="in_channel")
    event, slack = await attempts.next()
    assert await slack.reply(event, "done", response_type="in_channel") is None
    assert attempts.thread == ["done"]


def expire(attempts: Attempts) -> None:
    """Let Slack's thirty minutes pass for all response URLs."""
    for response in attempts.slack.simulator.interactions.responses.values():
        response.until = 0


def direct(attempts: Attempts) -> list[str]:
    """Return the texts of the bot's direct messages to Ada."""
    workspace = attempts.slack.simulator.workspace
    ada = workspace.user("ada")
    assert ada is not None
    return [message.text for message in workspace.direct_messages(ada.id).messages.values() if message.by_app]


async def test_answer_after_thirty_minutes_goes_to_the_person_alone(attempts: Attempts) -> None:
    event, slack = await attempts.command()
    expire(attempts)
    sent = await slack.reply(event, "done")
    assert (attempts.thread, direct(attempts)) == ([], ["done"])
    event, slack = await attempts.next()
    assert await slack.reply(event, "done") == sent
    assert direct(attempts) == ["done"]


async def test_answer_after_thirty_minutes_goes_to_the_channel_if_it_is_for_all(attempts: Attempts) -> None:
    event, slack = await attempts.command()
    expire(attempts)
    await slack.reply(event, "done", response_type="in_channel")
    assert (attempts.thread, direct(attempts)) == (["done"], [])
    workspace = attempts.slack.simulator.workspace
    workspace.channels[event.payload["channel_id"]].members.remove(workspace.bot.id)
    await slack.reply(event, "more", response_type="in_channel")
    assert (attempts.thread, direct(attempts)) == (["done"], ["more"])


async def test_answer_after_five_goes_to_the_person_too(attempts: Attempts) -> None:
    event, slack = await attempts.command()
    for number in range(6):
        await slack.reply(event, str(number))
    assert (attempts.thread, direct(attempts)) == (["0", "1", "2", "3", "4"], ["5"])


async def test_late_answer_is_shown_in_the_channel_where_direct_messages_are_off(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(**_: object) -> None:
        raise SlackApiError("off", {"ok": False, "error": "messages_tab_disabled"})  # type: ignore[no-untyped-call]

    event, slack = await attempts.command()
    expire(attempts)
    monkeypatch.setattr(attempts.clients.once, "chat_postMessage", refuse)
    await slack.reply(event, "done")
    (message,) = _streamed(attempts)
    assert (message.text, message.visible_to) == ("done", event.payload["user_id"])
    event, slack = await attempts.next()
    await slack.reply(event, "done")
    assert attempts.thread == ["done"]


async def test_late_answer_to_a_click_replaces_or_deletes_its_message(attempts: Attempts) -> None:
    event, slack = await attempts.click()
    expire(attempts)
    await slack.reply(event, "decided", replace_original=True)
    assert (attempts.thread, direct(attempts)) == (["decided"], [])
    await slack.reply(event, delete_original=True)
    assert (attempts.thread, direct(attempts)) == ([], [])
    await slack.reply(event, "gone", replace_original=True)
    assert (attempts.thread, direct(attempts)) == ([], ["gone"])


@pytest.mark.parametrize("length", [4_001, 40_000])
async def test_late_answer_that_chat_update_does_not_take_replaces_the_message_by_blocks(
    attempts: Attempts, length: int
) -> None:
    event, slack = await attempts.click()
    expire(attempts)
    text = "word " * (length // 5) + "x" * (length % 5)
    await slack.reply(event, text, replace_original=True)
    (message,) = _streamed(attempts)
    assert "".join(block["text"]["text"] for block in message.blocks) == text
    assert direct(attempts) == []
    await slack.reply(event, text, replace_original=True, blocks=[{"type": "divider"}])
    assert [block["type"] for block in message.blocks] == ["divider"]


async def test_replies_at_once_are_all_noted(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    await asyncio.gather(*(slack.reply(event, str(number)) for number in range(5)))
    event, slack = await attempts.next()
    await asyncio.gather(*(slack.reply(event, str(number)) for number in range(5)))
    assert sorted(attempts.thread) == ["0", "1", "2", "3", "4"]
    assert attempts.calls() == ["chat.postMessage"] * 5


async def test_stream_sends_the_first_words_at_once_and_gathers_the_others(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    async with slack.stream(event, interval=3600) as stream:
        for word in range(15):
            await stream.append(f"{word} ")
        assert attempts.thread == ["0 "]
    assert attempts.thread == [" ".join(map(str, range(15))) + " "]
    assert attempts.calls() == ["chat.startStream", "chat.stopStream"]


async def test_stream_sends_what_waits_although_the_handler_says_nothing_more(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    async with slack.stream(event, interval=0.05) as stream:
        await stream.append("one ")
        await stream.append("two ")
        await until(lambda: attempts.thread == ["one two "], what="the second word")
        await stream.append("three ")
        await until(lambda: attempts.thread == ["one two three "], what="the third word")
    assert attempts.calls().count("chat.appendStream") == 2


async def test_stream_of_no_interval_sends_every_text(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    async with slack.stream(event, interval=0) as stream:
        for word in ("one ", "two ", "three"):
            await stream.append(word)
    assert attempts.calls() == ["chat.startStream", *["chat.appendStream"] * 2, "chat.stopStream"]
    assert attempts.thread == ["one two three"]


async def test_stream_of_nothing_posts_nothing(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    async with slack.stream(event) as stream:
        await stream.append("")
    assert attempts.calls() == []


def lines(count: int) -> str:
    return "".join(f"line {number:04}\n" for number in range(count))


LONG = lines(5000)
"""50,000 characters, which one message of Slack's cannot hold."""


async def test_long_text_goes_on_in_further_messages(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    async with slack.stream(event) as stream:
        await stream.append(LONG[:30_005])
        await stream.append(LONG[30_005:])
        await stream.stop(blocks=[FEEDBACK])
    assert len(attempts.thread) == 5
    assert "".join(attempts.thread) == LONG
    *others, last = _streamed(attempts)
    assert [block["type"] for block in last.blocks] == ["context_actions"]
    assert not any(message.streaming or message.blocks for message in others)


async def test_long_text_is_cut_between_lines_or_words(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    async with slack.stream(event) as stream:
        await stream.append("word " * 1_999 + "longer\n" + "word " * 2_001 + "x" * 20_000)
    first, second, *rest = attempts.thread
    assert (first, second) == ("word " * 1_999, "longer\n" + "word " * 1_998)
    assert "".join(rest) == "word " * 3 + "x" * 20_000
    assert len(rest) == 3


@pytest.mark.parametrize("said", [3, 12_345, 25_000])
async def test_long_text_that_broke_off_is_finished_by_a_later_attempt(attempts: Attempts, said: int) -> None:
    event, slack = await attempts.mention()
    with suppress(RuntimeError):
        async with slack.stream(event, interval=0) as stream:
            await stream.append("other words " + LONG[:said])
            raise RuntimeError
    for _ in range(2):
        event, slack = await attempts.next()
        async with slack.stream(event, interval=0) as stream:
            await stream.append(LONG[:26_000])
            await stream.append(LONG[26_000:])
    assert "".join(attempts.thread) == LONG
    assert not any(message.streaming for message in _streamed(attempts))
    assert attempts.calls("conversations.replies") == []


async def test_later_attempt_that_says_less_removes_the_messages_of_the_earlier_one(
    attempts: Attempts,
) -> None:
    event, slack = await attempts.mention()
    with suppress(RuntimeError):
        async with slack.stream(event, interval=0) as stream:
            await stream.append(LONG[:35_000])
            raise RuntimeError
    for _ in range(2):
        event, slack = await attempts.next()
        async with slack.stream(event) as stream:
            await stream.append("short")
    assert attempts.thread == ["short"]


async def test_stream_that_was_being_begun_when_the_attempt_ended_is_looked_for(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    attempts.slack.simulator.faults.add(fault("slow", methods=["chat.startStream"], delay=600))
    beginning = asyncio.create_task(slack.stream(event).append("one "))
    await until(lambda: attempts.thread, what="the message")
    beginning.cancel()
    await asyncio.wait([beginning])
    for _ in range(2):
        event, slack = await attempts.next()
        async with slack.stream(event) as stream:
            await stream.append("one two")
    assert attempts.thread == ["one two"]
    assert attempts.calls("conversations.replies") == ["conversations.replies"]


async def test_stream_whose_first_answer_was_lost_goes_on(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    attempts.slack.simulator.faults.add(fault("answer_lost", methods=["chat.startStream"]))
    async with slack.stream(event, interval=0) as stream:
        await stream.append("one ")
        await stream.append("two")
    assert attempts.thread == ["one two"]


async def test_refused_stream_is_begun_by_the_next_attempt_without_a_lookup(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    attempts.slack.simulator.faults.add(fault("invalid_auth", methods=["chat.startStream"]))
    with pytest.raises(SlackApiError):
        await slack.stream(event).append("one")
    event, slack = await attempts.next()
    async with slack.stream(event) as stream:
        await stream.append("one")
    assert (attempts.thread, attempts.calls("conversations.replies")) == (["one"], [])


async def test_stream_takes_chunks_and_ends_with_blocks(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    async with slack.stream(event, interval=3600) as stream:
        await stream.append("Looking. ", chunks=[TaskUpdateChunk(id="1", title="Look", status="in_progress")])
        await stream.append("Found.", chunks=[{"type": "task_update", "id": "1", "status": "complete"}])
        await stream.stop(blocks=[FEEDBACK])
    (message,) = _streamed(attempts)
    assert message.text == "Looking. Found."
    assert [(task["title"], task["status"]) for task in message.tasks] == [("Look", "complete")]
    assert [block["type"] for block in message.blocks] == ["context_actions"]


async def test_later_attempt_ends_the_stream_of_an_earlier_one_with_the_same_blocks(
    attempts: Attempts,
) -> None:
    event, slack = await attempts.mention()
    with suppress(RuntimeError):
        async with slack.stream(event, interval=3600) as stream:
            await stream.append("one ")
            await stream.append("two ")
            raise RuntimeError
    event, slack = await attempts.next()
    async with slack.stream(event) as stream:
        await stream.append("one two three")
        await stream.stop(blocks=[FEEDBACK])
    (message,) = _streamed(attempts)
    assert [block["type"] for block in message.blocks] == ["markdown", "context_actions"]
    assert message.blocks[0]["text"] == message.text == "one two three"
    assert attempts.calls("conversations.replies", "chat.startStream") == ["chat.startStream"]


async def test_stream_that_slack_ended_is_finished_all_the_same(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    async with slack.stream(event, interval=0) as stream:
        await stream.append("one ")
        (message,) = _streamed(attempts)
        message.streaming = False
        await stream.append("two ")
        await stream.append("three")
    assert attempts.thread == ["one two three"]


async def test_error_of_a_later_part_reaches_the_handler(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    attempts.slack.simulator.faults.add(fault("invalid_auth", methods=["chat.appendStream"]))
    stream = slack.stream(event, interval=0.01)
    await stream.append("one ")
    await stream.append("two ")
    await until(lambda: "chat.appendStream" in attempts.calls(), what="the second call")
    with pytest.raises(SlackApiError):
        await stream.stop()


def _streamed(attempts: Attempts) -> list[Any]:
    general = attempts.slack.simulator.workspace.channel("general")
    assert general is not None
    return [message for message in general.messages.values() if message.by_app]


async def test_modal_is_opened_once(attempts: Attempts) -> None:
    event, slack = await attempts.command()
    opened = await slack.open_view(event, MODAL)
    event, slack = await attempts.next()
    assert await slack.open_view(event, MODAL) == opened
    assert attempts.calls() == ["views.open"]


async def test_modal_whose_answer_was_lost_counts_as_opened(attempts: Attempts) -> None:
    event, slack = await attempts.command()
    attempts.slack.simulator.faults.add(fault("answer_lost", methods=["views.open"]))
    with pytest.raises(Exception, match=r"disconnected|reset|closed"):
        await slack.open_view(event, MODAL)
    event, slack = await attempts.next()
    assert await slack.open_view(event, MODAL) is None


async def test_second_modal_of_an_attempt_needs_a_trigger_of_its_own(attempts: Attempts) -> None:
    event, slack = await attempts.command()
    await slack.open_view(event, MODAL)
    with pytest.raises(SlackApiError, match="exchanged_trigger_id"):
        await slack.open_view(event, MODAL)


async def test_modal_needs_an_interaction(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    with pytest.raises(NoTriggerError):
        await slack.open_view(event, MODAL)
    with pytest.raises(NowhereToReplyError):
        await slack.update_view(event, MODAL)


async def test_modal_is_updated(attempts: Attempts) -> None:
    event, slack = await attempts.command()
    opened = await slack.open_view(event, MODAL)
    await slack.update_view(event, {**MODAL, "callback_id": "later"}, view_id=opened)
    (shown,) = attempts.slack.simulator.interactions.views.values()
    assert shown.content["callback_id"] == "later"


async def test_title_and_prompts_are_set_in_the_thread(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    await slack.set_title(event, "Deploys")
    await slack.set_suggested_prompts(event, {"Deploy": "Deploy api, please"})
    methods = ["assistant.threads.setTitle", "assistant.threads.setSuggestedPrompts"]
    assert attempts.calls() == methods


@pytest.fixture
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("files") / "report.txt"
    path.write_text("all well")
    return str(path)


async def test_file_is_uploaded_once(attempts: Attempts, report: str) -> None:
    event, slack = await attempts.mention()
    uploaded = await slack.upload(event, report, comment="the report")
    event, slack = await attempts.next()
    assert await slack.upload(event, report, comment="the report") == uploaded
    (message,) = _streamed(attempts)
    assert (message.text, message.thread_ts) == ("the report", event.slack["ts"])
    assert [(file["id"], file["title"]) for file in message.files] == [(uploaded, "report.txt")]
    await slack.upload(event, b"bytes", filename="second")
    (_, second) = _streamed(attempts)
    assert [file["name"] for file in second.files] == ["second"]
    stored = attempts.slack.simulator.files.find(uploaded)
    assert stored is not None
    assert stored.content == b"all well"


@pytest.mark.parametrize("kind", ["answer_lost", "server_error"])
async def test_file_is_posted_once_where_slack_did_not_answer(
    attempts: Attempts, report: str, kind: str
) -> None:
    event, slack = await attempts.mention()
    attempts.slack.simulator.faults.add(fault(kind, methods=["files.completeUploadExternal"]))
    uploaded = await slack.upload(event, report, comment="the report")
    (message,) = _streamed(attempts)
    assert [file["id"] for file in message.files] == [uploaded]


@pytest.mark.parametrize("kind", ["slow", "server_error"], ids=["it was posted", "it was not"])
async def test_file_is_posted_once_where_an_attempt_ends_as_it_is_posted(
    attempts: Attempts, report: str, kind: str
) -> None:
    event, slack = await attempts.mention()
    method, delay = "files.completeUploadExternal", 60.0
    calls = attempts.slack.simulator.api.calls
    attempts.slack.simulator.faults.add(fault(kind, methods=[method], delay=delay))
    uploading = asyncio.create_task(slack.upload(event, report, comment="the report"))
    await until(
        lambda: _streamed(attempts) if kind == "slow" else any(call["method"] == method for call in calls),
        what="the call",
    )
    uploading.cancel()  # as a kill does: nothing more is noted
    await asyncio.wait([uploading])
    event, slack = await attempts.next()
    uploaded = await slack.upload(event, report, comment="the report")
    (message,) = _streamed(attempts)
    assert [file["id"] for file in message.files] == [uploaded]
    event, slack = await attempts.next()
    assert await slack.upload(event, report, comment="the report") == uploaded
    assert len(_streamed(attempts)) == 1


async def test_home_is_published(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    user = event.slack["user"]
    await slack.publish_home(user, {"type": "home", "callback_id": "first", "blocks": []})
    await slack.publish_home(user, {"type": "home", "callback_id": "second", "blocks": []})
    shown = attempts.slack.simulator.interactions.views.home(user)
    assert shown is not None
    assert shown.content["callback_id"] == "second"


async def test_home_that_changed_meanwhile_is_not_overwritten(attempts: Attempts) -> None:
    event, slack = await attempts.mention()
    user = event.slack["user"]
    await slack.publish_home(user, {"type": "home", "blocks": []})
    with pytest.raises(SlackApiError, match="hash_conflict"):
        await slack.publish_home(user, {"type": "home", "blocks": []}, hash="an older one")

"""The listeners of Slack's public samples run: a person does what each waits for, and Slack shows what it did."""

import importlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

from surelane.testing import Bot, Message, Sent, Slack
from surelane_dev.simulator.workspace.model import Channel
from surelane_dev.testing.bot import running_bot
from surelane_dev.testing.database import Server

pytest.importorskip("slack_bolt")


@pytest.fixture
def sample(request: pytest.FixtureRequest, surelane_slack: str) -> ModuleType:  # noqa: ARG001 - an App calls it
    """Return the app's module, with which the test's name begins."""
    name = request.node.name.removeprefix("test_").partition("_")[0]
    return importlib.import_module(f"dev.tests.kit.samples.{name}")


@pytest.fixture
async def bot(surelane_server: Server, sample: ModuleType, tmp_path: Path) -> AsyncIterator[Bot]:
    """Run the sample with the events and scopes of its manifest, and no others."""
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(sample.MANIFEST))
    async with running_bot(surelane_server, sample.app, manifest) as running:
        yield running
        events = running.events
    assert [str(event) for event in events if event.state != "completed"] == []
    refused = {(call["method"], call["error"]) for call in running.slack.simulator.api.calls if call["error"]}
    assert refused <= sample.REFUSED


def room(slack: Slack, name: str) -> Channel:
    channel = slack.simulator.workspace.channel(name)
    assert channel is not None
    return channel


def direct(slack: Slack) -> Channel:
    return slack.simulator.workspace.direct_messages(slack.simulator.workspace.people()[0].id)


def texts(sent: Sent) -> list[str]:
    """Return what the bot replied for all to see."""
    return [message.text for message in sent.replies if message.visible_to is None]


def tasks(answer: Message) -> list[tuple[str, str]]:
    return [(task["title"], task["status"]) for task in answer.tasks]


async def test_assistant_streams_asks_for_feedback_and_answers_commands(slack: Slack) -> None:
    await slack.open_app("messages")
    root, greeting = direct(slack).messages.values()
    assert greeting.text == "What is it?"
    assert texts(await slack.direct_message("why not", thread=root)) == ["You asked: whynot"]
    steps = await slack.direct_message("Show me the steps", thread=root)
    assert texts(steps) == ["Well. That is all."]
    assert tasks(steps.replies[0]) == [("Look", "complete"), ("Leap", "complete")]
    sent = await slack.mention("why")
    assert texts(sent) == ["You asked: why"]
    for value in ("good", "bad"):
        answer = next(message for message in sent.replies if message.blocks)
        await slack.click(answer, "rate", value=value)
        told = list(sent.channel.messages.values())[-1]
        assert (told.visible_to, told.text) == (direct(slack).peer, f"You found it {value}.")
    await slack.message("a very good morning")
    assert list(room(slack, "general").messages.values())[-1].text == "good morning to you"
    assert [reply.text for reply in (await slack.command("/ask-it")).replies] == ["Ask something."]
    (answer,) = (await slack.command("/ask-it", "when")).replies
    assert answer.blocks[0]["elements"][0]["elements"][0]["text"] == "when"


async def test_assistant_reads_the_channel_that_a_person_looks_at_or_a_workflow_names(slack: Slack) -> None:
    workspace, lounge = slack.simulator.workspace, room(slack, "lounge")
    workspace.post(lounge, workspace.people()[0].id, "The tea is hot")
    await slack.look("lounge")
    await slack.open_app("messages")
    root, _ = direct(slack).messages.values()
    assert texts(await slack.direct_message("Sum up the channel", thread=root)) == ["The tea is hot"]
    assert workspace.bot.id in lounge.members

    person = {"id": workspace.people()[0].id, "secret": "x"}
    run = await slack.run("sum_up", {"user_context": person, "channel_id": lounge.id})
    outputs = {"user_context": person, "response": "The tea is hot"}
    assert run.answer == {"state": "completed", "outputs": outputs, "error": None}
    failed = await slack.run("sum_up", {"user_context": person, "channel_id": "C0NONE"})
    assert failed.answer["state"] == "failed"
    assert "channel_not_found" in failed.answer["error"]


async def test_support(slack: Slack, sample: ModuleType) -> None:
    sample.sessions.clear()
    assert texts(await slack.mention("")) == ["What is wrong?"]
    sent = await slack.mention("no network")
    assert texts(sent) == ["Solved: no network"]
    assert sent.message is not None
    assert set(sent.message.reactions) == {"white_check_mark"}
    assert tasks(sent.replies[0]) == [("Marking as solved", "complete")]
    assert texts(await slack.message("still none", thread=sent)) == ["Once more: still none"]
    assert texts(await slack.message("among people")) == []
    assert texts(await slack.direct_message("hello")) == ["Solved: hello"]

    await slack.open_app("messages")
    await slack.open_app()
    assert [block["type"] for block in slack.home()["blocks"]] == ["header", "actions", "context"]
    await slack.click(slack.home(), "connect")
    await slack.click(slack.home(), "topic_access")
    chosen = slack.modal()["blocks"][1]["element"]["initial_option"]["value"]
    await slack.click(slack.modal(), "more")
    assert slack.modal()["blocks"][1]["element"]["initial_option"]["value"] == "Something else"
    support = room(slack, "support")
    await slack.submit({"topic": chosen, "text": "the door", "place": support.id})
    said, solved = support.messages.values()
    assert (said.text, solved.text) == ("*Access*: the door", "Solved: the door")
    assert (set(said.reactions), solved.thread_ts) == ({"eyes"}, said.ts)

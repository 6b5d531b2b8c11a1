"""Every listener of Slack's public samples runs: a person does what it waits for, and Slack shows what it did."""

import importlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

from surelane.testing import Bot, Message, Sent, Slack, assert_replied
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


def general(slack: Slack) -> Channel:
    channel = slack.simulator.workspace.channel("general")
    assert channel is not None
    return channel


def direct(slack: Slack) -> Channel:
    return slack.simulator.workspace.direct_messages(slack.simulator.workspace.people()[0].id)


def texts(sent: Sent) -> list[str]:
    """Return what the bot replied for all to see."""
    return [message.text for message in sent.replies if message.visible_to is None]


def newest(channel: Channel) -> Message:
    return list(channel.messages.values())[-1]


async def rated(slack: Slack, sent: Sent, value: str) -> str:
    """Press a feedback button of an answer. Return what the person alone sees then."""
    answer = next(message for message in sent.replies if message.blocks)
    await slack.click(answer, "rate", value=value)
    told = newest(sent.channel)
    assert told.visible_to is not None
    return told.text


async def test_starter(slack: Slack) -> None:
    said = await slack.message("a very good morning")
    assert newest(general(slack)).text == "good morning to you"
    assert_replied(await slack.command("/parrot", "hello"), "You wrote hello")
    await slack.open_app()
    assert [block["text"]["text"][:5] for block in slack.home()["blocks"]] == ["Hello", "<http"]
    await slack.shortcut("wish")
    await slack.click(slack.modal(), "more")
    assert [block["type"] for block in slack.modal()["blocks"]] == ["section", "image", "input", "input"]
    await slack.submit({"wish": "rain", "place": general(slack).id})
    assert said.message is not None
    assert newest(general(slack)).text == f"<@{said.message.user}> wishes for rain"


async def test_assistant(slack: Slack) -> None:
    await slack.open_app("messages")
    root, greeting = direct(slack).messages.values()
    assert greeting.text == "What is it?"
    assert texts(await slack.direct_message("why not", thread=root)) == ["You asked: whynot"]
    steps = await slack.direct_message("Show me the steps", thread=root)
    assert texts(steps) == ["Well. That is all."]
    (answer,) = steps.replies
    assert [(task["title"], task["status"]) for task in answer.tasks] == [
        ("Look", "complete"),
        ("Leap", "complete"),
    ]
    sent = await slack.mention("why")
    assert texts(sent)[0].endswith("why")
    assert await rated(slack, sent, "good") == "Thank you."
    assert await rated(slack, sent, "bad") == "A new chat may help."


@pytest.mark.filterwarnings("ignore:The top-level `text`:UserWarning")  # the sample gives none
async def test_chatbot(slack: Slack, sample: ModuleType) -> None:
    sample.chosen.clear()
    await slack.open_app()
    menu = slack.home()["blocks"][-1]["elements"][0]
    assert menu["initial_option"]["value"] == "null"
    await slack.click(slack.home(), "choose", value="large")
    await slack.open_app()
    assert slack.home()["blocks"][-1]["elements"][0]["initial_option"]["value"] == "large"

    sent = await slack.mention("why")
    assert texts(sent) == ["large: why (1)"]
    assert texts(await slack.mention("how", thread=sent)) == ["large: how (3)"]
    written = await slack.direct_message("hello")
    assert texts(written) == ["large: hello (0)"]
    assert texts(await slack.message("among people")) == []

    assert [reply.text for reply in (await slack.command("/ask-it")).replies] == ["Ask something."]
    (answer,) = (await slack.command("/ask-it", "when")).replies
    quote, section = answer.blocks[0]["elements"]
    assert [quote["elements"][0]["text"], section["elements"][0]["text"]] == ["when", "large: when (0)"]

    person = {"id": slack.simulator.workspace.people()[0].id, "secret": "x"}
    run = await slack.run("sum_up", {"user_context": person, "channel_id": general(slack).id})
    outputs = {"user_context": person, "response": "large: Sum up the channel (2)"}
    assert run.answer == {"state": "completed", "outputs": outputs, "error": None}
    failed = await slack.run("sum_up", {"user_context": person, "channel_id": "C0NONE"})
    assert failed.answer["state"] == "failed"
    assert "channel_not_found" in failed.answer["error"]


async def test_chatbot_as_an_assistant(slack: Slack, sample: ModuleType) -> None:
    sample.chosen.clear()
    workspace = slack.simulator.workspace
    lounge = workspace.channel("lounge")
    assert lounge is not None
    workspace.post(lounge, workspace.people()[0].id, "The tea is hot")
    await slack.look("lounge")
    await slack.open_app("messages")
    root, greeting = direct(slack).messages.values()
    assert greeting.text == "How can I help?"
    assert texts(await slack.direct_message("which", thread=root)) == ["none: which (3)"]
    assert texts(await slack.direct_message("Sum up the channel", thread=root)) == [
        "none: The tea is hot (0)"
    ]
    assert workspace.bot.id in lounge.members


async def test_support(slack: Slack, sample: ModuleType) -> None:
    sample.sessions.clear()
    assert texts(await slack.mention("")) == ["What is wrong?"]
    sent = await slack.mention("no network")
    assert texts(sent) == ["Solved: no network"]
    assert sent.message is not None
    assert set(sent.message.reactions) == {"eyes", "white_check_mark"}
    (answer,) = sent.replies
    assert [(task["title"], task["status"]) for task in answer.tasks] == [("Marking as solved", "complete")]
    assert texts(await slack.message("still none", thread=sent)) == ["Once more: still none"]
    assert texts(await slack.message("among people")) == []
    assert texts(await slack.direct_message("hello")) == ["Solved: hello"]
    assert await rated(slack, sent, "good") == "You found it good."

    await slack.open_app("messages")
    await slack.open_app()
    await slack.click(slack.home(), "connect")
    await slack.click(slack.home(), "topic_access")
    topic = slack.modal()["blocks"][0]["element"]["initial_option"]["value"]
    await slack.submit({"topic": topic, "text": "the door"})
    said, solved = list(direct(slack).messages.values())[-2:]
    assert (said.text, solved.text) == ("*Access*: the door", "Solved: the door")
    assert (set(said.reactions), solved.thread_ts) == ({"eyes"}, said.ts)

"""The listeners of Slack's public samples run: a person does what each waits for, and Slack shows what it did."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from surelane.testing import Bot, Sent, Slack, assert_replied
from surelane_dev.simulator.workspace.model import Channel
from surelane_dev.testing.bot import running_bot
from surelane_dev.testing.database import Server

pytest.importorskip("slack_bolt")


@pytest.fixture
async def bot(surelane_server: Server, surelane_slack: str, tmp_path: Path) -> AsyncIterator[Bot]:  # noqa: ARG001
    """Run the app with the events and scopes of its manifest, and no others."""
    from dev.tests.kit import sample_app  # noqa: PLC0415 - it calls `surelane_slack`

    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(sample_app.MANIFEST))
    async with running_bot(surelane_server, sample_app.app, manifest) as running:
        yield running
        events = running.events
    assert [str(event) for event in events if event.state != "completed"] == []
    refused = {(call["method"], call["error"]) for call in running.slack.simulator.api.calls if call["error"]}
    assert refused <= sample_app.REFUSED


def room(slack: Slack, name: str) -> Channel:
    channel = slack.simulator.workspace.channel(name)
    assert channel is not None
    return channel


def texts(sent: Sent) -> list[str]:
    """Return what the bot replied for all to see."""
    return [message.text for message in sent.replies if message.visible_to is None]


async def test_an_assistant_answers_about_the_channel_that_a_person_looks_at(slack: Slack) -> None:
    workspace, lounge = slack.simulator.workspace, room(slack, "lounge")
    ada = workspace.people()[0].id
    workspace.post(lounge, ada, "The tea is hot")
    await slack.look("lounge")
    await slack.open_app("messages")
    root, greeting = workspace.direct_messages(ada).messages.values()
    assert greeting.text == f"You look at {lounge.id}"
    assert texts(await slack.direct_message("Sum up the channel", thread=root)) == ["The tea is hot"]
    assert workspace.bot.id in lounge.members
    steps = await slack.direct_message("Show me the steps", thread=root)
    assert texts(steps) == ["Well. That is all."]
    assert [(task["title"], task["status"]) for task in steps.replies[0].tasks] == [("Look", "complete")]


async def test_a_mention_is_answered_by_a_stream_with_feedback_buttons(slack: Slack) -> None:
    sent = await slack.mention("network")
    assert texts(sent) == ["Solved: network"]
    assert sent.message is not None
    assert set(sent.message.reactions) == {"eyes"}
    for value in ("good", "bad"):
        answer = next(message for message in sent.replies if message.blocks)
        await slack.click(answer, "rate", value=value)
        told = list(sent.channel.messages.values())[-1]
        assert (told.visible_to, told.text) == (sent.message.user, f"You found it {value}.")
    await slack.message("a very good morning")
    assert list(sent.channel.messages.values())[-1].text == "good morning to you"


async def test_a_button_on_home_opens_a_form_that_can_change(slack: Slack) -> None:
    await slack.open_app()
    assert [block["type"] for block in slack.home()["blocks"]] == ["header", "actions"]
    await slack.click(slack.home(), "topic")
    await slack.click(slack.modal(), "more")
    assert slack.modal()["blocks"][1]["label"]["text"] == "What else?"
    assert_replied(await slack.submit({"text": "the door"}), "Reported: the door")


async def test_a_function_completes_or_fails_in_a_workflow(slack: Slack) -> None:
    await slack.message("The tea is hot")
    person = {"id": slack.simulator.workspace.people()[0].id, "secret": "x"}
    run = await slack.run("sum_up", {"user": person, "channel_id": room(slack, "general").id})
    outputs = {"user": person, "response": "The tea is hot"}
    assert run.answer == {"state": "completed", "outputs": outputs, "error": None}
    failed = await slack.run("sum_up", {"user": person, "channel_id": "C0NONE"})
    assert failed.answer["state"] == "failed"
    assert "channel_not_found" in failed.answer["error"]

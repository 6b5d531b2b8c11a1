"""A person in Chromium uses the app's commands, shortcuts, Home, feedback buttons, files and Stop."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.browser.slack_page import SlackPage
from tests.browser.test_modals import forms, option, plain
from tests.system.slack_app import Answer, Pair, simulated

pytestmark = pytest.mark.browser

ADA = "U0ADA00001"
MANIFEST: dict[str, Any] = {
    "features": {
        "app_home": {"home_tab_enabled": True},
        "slash_commands": [
            {"command": "/deploy", "description": "Deploy a service", "usage_hint": "[service]"},
            {"command": "/status", "description": "Say how things are"},
        ],
        "shortcuts": [
            {"name": "Ask", "type": "global", "callback_id": "ask"},
            {"name": "Summarise", "type": "message", "callback_id": "sum", "description": "In two lines"},
        ],
    },
    "settings": {
        "event_subscriptions": {"bot_events": ["app_home_opened", "app_mention", "agent_session_stopped"]}
    },
    "oauth_config": {"scopes": {"bot": ["chat:write", "files:write", "commands"]}},
}


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """Run a simulated Slack for the app of this manifest."""
    path = tmp_path / "manifest.yaml"
    path.write_text(yaml.safe_dump(MANIFEST))
    async with simulated(manifest=path) as running:
        yield running


async def test_a_command_is_completed_its_answer_or_failure_is_shown(slack: SlackPage, pair: Pair) -> None:
    await slack.composer.fill("/")
    offered = slack.page.get_by_role("listbox", name="Commands").get_by_role("option")
    await slack.expect(offered).to_have_count(2)
    await slack.composer.press_sequentially("d")
    await slack.expect(offered).to_have_count(1)
    await slack.composer.press("Enter")
    await slack.expect(slack.composer).to_have_value("/deploy ")
    pair.app.answer({"text": "Deploying *api*", "response_type": "in_channel"})
    await slack.composer.press_sequentially("api")
    await slack.composer.press("Enter")
    await slack.expect(slack.message("Deploying api")).to_be_visible()
    assert pair.app.received[0].form is not None
    assert pair.app.received[0].form["text"] == "api"
    pair.app.answers.append(Answer(500))
    await slack.say("/deploy")
    warning = slack.message('/deploy failed with the error "dispatch_failed"')
    await slack.expect(warning).to_contain_text("Slackbot")
    await slack.expect(warning).to_contain_text("Only visible to you")


async def test_a_messages_menu_is_used_by_keyboard_and_stays_open(slack: SlackPage, pair: Pair) -> None:
    posted = await pair.web.chat_postMessage(channel="general", text="a draft")
    await slack.message("a draft").get_by_role("button", name="Message shortcuts").press("Enter")
    entry = slack.page.get_by_role("menuitem", name="Summarise")
    await slack.expect(entry).to_be_focused()
    await pair.web.chat_update(channel=posted["channel"], ts=posted["ts"], text="the final text")
    await pair.web.chat_postMessage(channel="general", text="another one")
    await slack.expect(slack.message("another one")).to_be_visible()
    await slack.expect(entry).to_be_focused()
    await slack.page.keyboard.press("Enter")
    (used,) = await forms(pair, "message_action")
    assert used.payload["message"]["text"] == "the final text"
    await slack.expect(slack.message("the final text")).to_be_visible()


async def test_nothing_moves_under_a_pressed_button(slack: SlackPage) -> None:
    script = """async () => {
      const { changed, onChange } = await import("/page/store.js");
      let drawn = 0;
      onChange(() => (drawn += 1));
      dispatchEvent(new PointerEvent("pointerdown"));
      changed();
      await new Promise((resolve) => setTimeout(resolve, 50));
      const pressed = drawn;
      dispatchEvent(new PointerEvent("pointerup"));
      await new Promise((resolve) => setTimeout(resolve, 50));
      return [pressed, drawn > 0];
    }"""
    assert await slack.page.evaluate(script) == [0, True]


async def test_home_is_published_and_used(slack: SlackPage, pair: Pair) -> None:
    await slack.open_channel("Surelane")
    await pair.app.arrive(1)
    await slack.page.get_by_role("tab", name="Home").click()
    await slack.expect(slack.page.get_by_text("has not published its Home")).to_be_visible()
    received = await pair.app.arrive(2)
    assert [each.envelope["event"]["tab"] for each in received] == ["messages", "home"]
    button = {"type": "button", "action_id": "new", "text": plain("New ticket")}
    size = {"type": "static_select", "action_id": "size", "options": [option("small"), option("large")]}
    view = {"type": "home", "blocks": [{"type": "actions", "block_id": "a", "elements": [button, size]}]}
    await pair.web.views_publish(user_id=ADA, view=view)
    await slack.page.get_by_role("button", name="New ticket").click()
    await forms(pair, "block_actions")
    await slack.page.get_by_role("combobox", name="size").select_option("Large")
    (_, chosen) = await forms(pair, "block_actions", 2)
    assert chosen.payload["actions"][0]["selected_option"]["value"] == "large"
    assert chosen.payload["view"]["type"] == "home"
    await slack.page.get_by_role("tab", name="Messages").click()
    await slack.expect(slack.composer).to_be_visible()


async def test_feedback_and_a_confirmed_button(slack: SlackPage, pair: Pair) -> None:
    feedback = {
        "type": "feedback_buttons",
        "action_id": "feedback",
        "positive_button": {"text": plain("Good"), "value": "good"},
        "negative_button": {"text": plain("Bad"), "value": "bad"},
    }
    sure = {"title": plain("Sure?"), "text": plain("For all."), "confirm": plain("Yes"), "deny": plain("No")}
    button = {"type": "button", "action_id": "go", "text": plain("Go"), "confirm": sure}
    blocks = [{"type": "actions", "elements": [button]}, {"type": "context_actions", "elements": [feedback]}]
    await pair.web.chat_postMessage(channel="general", text="x", blocks=blocks)
    await slack.page.get_by_role("button", name="Bad").click()
    (given,) = await forms(pair, "block_actions")
    assert given.payload["actions"][0]["value"] == "bad"
    await slack.expect(slack.page.get_by_role("button", name="Bad")).to_have_attribute("aria-pressed", "true")
    await slack.page.get_by_role("button", name="Go", exact=True).click()
    await slack.page.get_by_role("button", name="No", exact=True).click()
    await slack.page.get_by_role("button", name="Go", exact=True).click()
    await slack.page.get_by_role("button", name="Yes", exact=True).click()
    assert (await forms(pair, "block_actions", 2))[1].payload["actions"][0]["action_id"] == "go"
    warning = slack.page.get_by_role("img", name="The app did not acknowledge: http_error 500")
    await slack.expect(warning).to_have_count(0)
    pair.app.answers.append(Answer(500))
    await slack.page.get_by_role("button", name="Good").click()
    await slack.expect(warning).to_be_visible()


async def test_streamed_text_stays_above_its_last_blocks_and_is_stopped(slack: SlackPage, pair: Pair) -> None:
    said = await pair.said()
    stream = await pair.web.chat_startStream(
        channel=said["channel"], thread_ts=said["ts"], recipient_team_id="T", recipient_user_id=ADA
    )
    button = {"type": "button", "action_id": "go", "text": plain("Go")}
    blocks = [{"type": "actions", "elements": [button]}]
    where = {"channel": said["channel"], "ts": stream["ts"]}
    await pair.web.chat_stopStream(**where, markdown_text="all is well", blocks=blocks)
    await slack.channel.get_by_role("button", name="1 reply").click()
    await slack.expect(slack.thread.get_by_role("button", name="Go")).to_be_visible()
    await slack.expect(slack.thread).to_contain_text("all is well")
    await pair.web.chat_update(**where, text="a fallback", blocks=blocks)
    await slack.expect(slack.thread).not_to_contain_text("all is well")
    where = {"channel_id": said["channel"], "thread_ts": said["ts"]}
    await pair.web.agents_sessions_setStatus(status="processing", **where)
    await slack.expect(slack.channel.locator(".status")).to_contain_text("Surelane is working")
    await slack.channel.get_by_role("button", name="Stop").click()
    received = await pair.app.arrive(2)
    assert received[1].envelope["event"]["type"] == "agent_session_stopped"
    await pair.web.agents_sessions_setStatus(status="active", **where)
    await slack.expect(slack.channel.locator(".status")).to_have_count(0)


async def test_a_file_is_saved_and_a_menu_in_a_message_asks_the_app(slack: SlackPage, pair: Pair) -> None:
    await pair.web.files_upload_v2(content="all well", filename="report.txt", channel="general")
    async with slack.page.expect_download() as download:
        await slack.page.get_by_role("link", name="report.txt").click()
    assert (await (await download.value).path()).read_text() == "all well"
    menu = {
        "type": "external_select",
        "action_id": "x",
        "min_query_length": 0,
        "placeholder": plain("A city"),
    }
    blocks = [{"type": "actions", "block_id": "a", "elements": [menu]}]
    await pair.web.chat_postMessage(channel="general", text="x", blocks=blocks)
    pair.app.answer({"option_groups": [{"label": plain("North"), "options": [option("oslo")]}]})
    await slack.page.get_by_role("combobox", name="A city").click()
    await slack.expect(slack.page.get_by_text("North")).to_be_visible()
    await slack.page.get_by_role("option", name="Oslo").click()
    (chosen,) = await forms(pair, "block_actions")
    assert chosen.payload["actions"][0]["selected_option"] == option("oslo")

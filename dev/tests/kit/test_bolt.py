"""`surelane.testing` runs a Bolt app that `[tool.surelane]` names, without a variable and without Slack."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.databases import Server

PROJECT = """
[tool.surelane]
handlers = "app:app"
[tool.pytest.ini_options]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "function"
"""
APPS = {
    "App": """
import os
from slack_bolt import App
from slack_sdk import WebClient

app = App(token=os.environ["SLACK_BOT_TOKEN"], signing_secret=os.environ["SLACK_SIGNING_SECRET"])
own = WebClient(token=os.environ["SLACK_BOT_TOKEN"])

@app.event("app_mention")
def mentioned(event, say):
    say(f"I am {own.auth_test()['user']}", thread_ts=event["ts"])

@app.event("reaction_added")
def reacted(event, client):
    client.chat_postMessage(channel=event["item"]["channel"], text=event["reaction"])
""",
    "AsyncApp": """
import os
from slack_bolt.async_app import AsyncApp

app = AsyncApp(token=os.environ["SLACK_BOT_TOKEN"], signing_secret=os.environ["SLACK_SIGNING_SECRET"])

@app.event("app_mention")
async def mentioned(client, event, say):
    await say(f"I am {(await client.auth_test())['user']}", thread_ts=event["ts"])

@app.event("reaction_added")
async def reacted(event, client):
    await client.chat_postMessage(channel=event["item"]["channel"], text=event["reaction"])
""",
}
TESTS = """
from surelane.testing import assert_replied

async def test_mention(slack):
    assert_replied(await slack.mention("who are you"), "I am surelane")

async def test_kill(bot, slack):
    with bot.killed_at("end"):
        sent = await slack.mention("who are you")
    assert_replied(sent, "I am surelane")
    assert [event.attempts for event in bot.events] == [2]

async def test_reaction(slack):
    sent = await slack.message("hello")
    await slack.react(sent, "eyes")
    assert [message.text for message in sent.channel.messages.values()] == ["hello", "eyes"]
"""


@pytest.mark.parametrize("sort", APPS)
def test_tests_of_a_project_with_a_bolt_app(server: Server, tmp_path: Path, sort: str) -> None:
    pytest.importorskip("slack_bolt")
    files = {"pyproject.toml": PROJECT, "app.py": APPS[sort], "test_app.py": TESTS}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    given = {name: value for name, value in os.environ.items() if not name.startswith("SLACK_")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--assert=plain"],
        cwd=tmp_path,
        env={**given, "SURELANE_TEST_DATABASE_URL": server.admin},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout

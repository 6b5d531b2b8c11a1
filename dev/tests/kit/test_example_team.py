"""The handlers of the example's team answer people."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surelane.testing import Bot, Slack, assert_replied
from surelane_worker import Handlers

TEAM = Path(__file__).parents[3] / "examples/team"


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handlers]:
    monkeypatch.syspath_prepend(TEAM)
    from team_bot import handlers as found  # type: ignore[import-not-found]  # noqa: PLC0415

    yield found
    for name in [name for name in sys.modules if name.partition(".")[0] == "team_bot"]:
        del sys.modules[name]


async def test_a_question_is_answered_its_feedback_kept_and_a_reminder_comes(bot: Bot, slack: Slack) -> None:
    sent = await slack.mention("why is the sky blue")
    answer = "why is the sky blue — that is what I understood."
    assert_replied(sent, answer)
    await slack.click(sent, "feedback", value="good")
    results = [event.result for event in bot.events if event.state == "completed"]
    assert results == [{"words": 5}, {"feedback": "good"}]
    await bot.advance("59m")
    assert_replied(sent, answer, "Thank you.")
    await bot.advance("1m")
    assert_replied(sent, answer, "Thank you.", "Did that help?")
    await slack.mention("nothing")
    assert [event.detail for event in bot.events if event.state == "failed"] == ["asked for nothing"]


async def test_a_shortcut_opens_a_modal_whose_question_is_answered_in_a_direct_message(slack: Slack) -> None:
    await slack.shortcut("ask")
    assert_replied(await slack.submit({"text": "why"}), "You asked: why")

"""Tools that work in Slack: search it, and show charts and cards."""

import json
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ToolFailed
from slack_sdk.errors import SlackApiError

from surelane.slack import object_in
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.model.voice import quiet
from surelane_worker.slack.client import slack_error

LONGEST_FOUND = 1000
"""Characters of a message that was found. The rest is cut."""
SHOWN = frozenset({"data_visualization", "card"})
WITHOUT = "Slack cannot be searched for this question: {}. Answer without it, and say so."


async def search_slack(run: RunContext[Context], query: str) -> list[dict[str, str]]:
    """Search messages in Slack. Cite each one that you use: a Markdown link to its permalink.

    Args:
        run: the run, which the model does not see.
        query: a question or keywords.
    """
    slack = attempt_of(run.deps).events[0].slack
    token = slack.get("action_token") or object_in(slack.get("assistant_thread")).get("action_token")
    if not token:
        raise ToolFailed(WITHOUT.format("it came without a right to search"))
    asked = {"query": query, "action_token": token}
    try:
        answer = await run.deps.slack.client.api_call("assistant.search.context", json=asked)
    except SlackApiError as error:
        reason = f"Slack answers {slack_error(error)}, perhaps because the question is some minutes old"
        raise ToolFailed(WITHOUT.format(reason)) from None
    return [
        {
            "text": str(found.get("content"))[:LONGEST_FOUND],
            "author": str(found.get("author_name") or found.get("author_user_id")),
            "channel": str(found.get("channel_name") or found.get("channel_id")),
            "permalink": str(found.get("permalink")),
        }
        for found in map(object_in, object_in(answer.get("results")).get("messages") or ())
    ]


async def show(run: RunContext[Context], blocks: list[dict[str, Any]], text: str) -> str:
    """Show charts and cards in Slack, in a message of their own.

    A chart is {"type": "data_visualization", "title": …, "chart": …}. The chart is {"type": "pie", "segments":
    [{"label": …, "value": …}]}, or {"type": "bar", "line" or "area", "series": [{"name": …, "data": [{"label": …,
    "value": …}]}], "axis_config": {"categories": [labels]}}. A title has 50 characters, a label or name 20; there are 6
    segments or series and 20 categories at most. A card is {"type": "card", "title": {"type": "mrkdwn", "text": …},
    "subtitle": likewise, "body": likewise}, with 150, 150 and 200 characters.

    Args:
        run: the run, which the model does not see.
        blocks: the charts and cards.
        text: the same in words, for notifications and for people who cannot see them.
    """
    if not blocks or not all(each.get("type") in SHOWN and "actions" not in each for each in blocks):
        raise ToolFailed(f"only {' and '.join(sorted(SHOWN))} can be shown, without actions")
    (event, *_), calm = attempt_of(run.deps).events, json.loads(quiet(json.dumps(blocks)))
    await run.deps.slack.reply(event, quiet(text), blocks=calm)
    return "shown"

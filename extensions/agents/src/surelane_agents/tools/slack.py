"""Tools that work in Slack: search it, and show charts and cards."""

import json
from typing import Any

from pydantic_ai import RunContext, ToolFailed
from slack_sdk.errors import SlackApiError

from surelane.slack import object_in
from surelane.text import escaped_once, typed
from surelane_agents.context.thread import quiet
from surelane_agents.reply.voice import UNFURLED
from surelane_worker import Context
from surelane_worker.handling.context import attempt_of
from surelane_worker.slack.client import slack_error

FOUND = {"text": "content", "author": "author_user_id", "permalink": "permalink"}
LONGEST_FOUND = 1000
SHOWN = frozenset({"data_visualization", "card", "carousel", "container"})
ONLY = f"only {', '.join(sorted(SHOWN))} can be shown, without actions and images"
WITHIN = SHOWN | {"bar", "line", "area", "pie", "section", "header", "context", "divider"}
WITHIN |= {"mrkdwn", "plain_text"}
"""The types of what stands in these blocks."""
BARRED = frozenset({"actions", "accessory", "image_url", "slack_file"})
"""Nothing can be pressed, and Slack fetches no image: its address may have what the model knows."""
WITHOUT = "Slack cannot be searched for this question: {}. Answer without it, and say so."


async def search_slack(run: RunContext[Context], query: str) -> list[dict[str, str]]:
    """Search messages in Slack by a question or keywords. Cite what you use: a Markdown link to its permalink."""
    slack = attempt_of(run.deps).events[0].slack
    token = slack.get("action_token") or object_in(slack.get("assistant_thread")).get("action_token")
    if not token:
        raise ToolFailed(WITHOUT.format("it came without a right to search"))
    asked = {"query": query, "action_token": token}
    try:
        answer = await run.deps.slack.client.api_call("assistant.search.context", json=asked)
    except SlackApiError as error:
        why = f"Slack answers {slack_error(error)}, perhaps because the question is some minutes old"
        raise ToolFailed(WITHOUT.format(why)) from None
    messages = map(object_in, object_in(answer.get("results")).get("messages") or ())
    return [
        {name: typed(str(each.get(found)))[:LONGEST_FOUND] for name, found in FOUND.items()}
        for each in messages
    ]


async def show(run: RunContext[Context], blocks: list[dict[str, Any]], text: str) -> str:
    """Show charts and cards in Slack, in a message of their own. The text says the same in words, for notifications.

    A chart is {"type": "data_visualization", "title": …, "chart": …}. The chart is {"type": "pie", "segments":
    [{"label": …, "value": …}]}, or {"type": "bar", "line" or "area", "series": [{"name": …, "data": [{"label": …,
    "value": …}]}], "axis_config": {"categories": [labels]}}. A title has 50 characters, a label or name 20; there are 6
    segments or series and 20 categories at most. A card is {"type": "card", "title": {"type": "mrkdwn", "text": …},
    "subtitle": likewise, "body": likewise}, with 150, 150 and 200 characters. Up to 10 cards beside each other are
    {"type": "carousel", "elements": [cards]}. {"type": "container", "title": {"type": "plain_text", "text": …},
    "child_blocks": […], "is_collapsible": true} folds up to 10 section, header, context and divider blocks.
    """
    if not blocks or not all(str(each.get("type")) in SHOWN for each in blocks):
        raise ToolFailed(ONLY)
    (event, *_), calm = attempt_of(run.deps).events, json.loads(quiet(json.dumps(blocks)))
    await run.deps.slack.reply(event, escaped_once(quiet(text)), blocks=_written(calm), **UNFURLED)
    return "shown"


def _written(value: Any) -> Any:
    """Return blocks with a model's Slack notation escaped. ``ToolFailed``: they do more than to show text."""
    if isinstance(value, list):
        return [_written(each) for each in value]
    if not isinstance(value, dict):
        return value
    if str(value.get("type", "card")) not in WITHIN or not BARRED.isdisjoint(value):
        raise ToolFailed(ONLY)
    written = {name: _written(each) for name, each in value.items()}
    text = value.get("text")
    if value.get("type") == "mrkdwn" and isinstance(text, str):
        written["text"] = escaped_once(text)
    return written

"""Read what was said in a thread before an event: the context of a turn."""

import re
from collections import deque
from collections.abc import Mapping
from typing import Any, TypedDict

from surelane.events import Event
from surelane.slack import Place, authorization_of, object_in, text_in
from surelane_worker.handling.context import Context
from surelane_worker.slack.client import messages_of

MOST_MESSAGES = 50
"""Messages of a thread that a model gets: the first one and the last ones."""
MOST_CHARACTERS = 40_000
"""Of all of them together. The oldest are left out, but not the first one."""
LONGEST_MESSAGE = 4000
"""Characters of one earlier message. The rest is cut."""
PAGE = 200
"""Messages per call. A thread of more pages than :data:`surelane_worker.slack.client.PAGES` is read up to there."""

MOST_ENTITIES = 5
"""Things that the author of a message is looking at. Slack has the most relevant one first."""
CHANNEL = re.compile(r"[CDG][A-Z0-9]+", re.ASCII)
"""A channel's id. A job's payload may have another word there, such as ``slack``."""
ID = re.compile(r"[A-Z0-9.]{2,40}", re.ASCII)


class Said(TypedDict):
    """A message of a thread."""

    own: bool
    text: str


async def before(event: Event, ctx: Context, place: Place) -> list[Said]:
    """Return the earlier messages of the event's thread, oldest first.

    Nothing is read for an event that begins a thread. A thread that the bot may not read has no messages.
    """
    if not place.channel or not place.thread_ts or place.thread_ts == place.message_ts:
        return []
    named = text_in(authorization_of(event.payload).get("user_id"))  # Slack's envelopes name the bot's user
    me = named or str((await ctx.slack.client.auth_test())["user_id"])
    first: list[Any] = []
    last: deque[Any] = deque(maxlen=MOST_MESSAGES - 1)
    thread: dict[str, Any] = {"channel": place.channel, "ts": place.thread_ts, "latest": place.message_ts}
    async for message in messages_of(ctx.slack.client.conversations_replies(**thread, limit=PAGE), ctx.log):
        if message.get("ts") != place.message_ts:
            (last if first else first).append(message)
    return shortened([_said(message, me) for message in (*first, *last) if message.get("text")])


def _said(message: Mapping[str, Any], me: str) -> Said:
    text = str(message["text"])[:LONGEST_MESSAGE]
    user = message.get("user") or message.get("bot_id")
    return {"own": True, "text": text} if user == me else {"own": False, "text": quoted(user, text)}


def quoted(user: object, text: str) -> str:
    """Return a text with its author's id in front, because a thread may have several."""
    return f"<@{user}>: {text}" if user else text


def looked_at(event: Event) -> str:
    """Return what Slack says that a message's author is looking at, as a sentence; empty: it says nothing.

    Slack says so in direct messages to an app with the agent view.
    """
    entities = object_in(event.slack.get("app_context")).get("entities")
    shown = [
        found
        for each in (entities if isinstance(entities, list) else ())[:MOST_ENTITIES]
        if (found := _entity(each))
    ]
    return f"\n\n(Its author is looking at: {', '.join(shown)}.)" if shown else ""


def _entity(entity: object) -> str | None:
    given = object_in(entity)
    sort, value = str(given.get("type")).rpartition("/")[2], given.get("value")
    where = object_in(value)
    ids = [where.get("channel_id"), where.get("message_ts")] if where else [value]
    if not all(isinstance(each, str) and ID.fullmatch(each) for each in ids):
        return None
    name = sort.removesuffix("_id").removesuffix("_ts").removesuffix("_context")
    return f"{name} {' '.join(map(str, ids))}" if name.isalpha() else None


def shortened(said: list[Said]) -> list[Said]:
    """Leave out the oldest messages, except the first, that would exceed :data:`MOST_CHARACTERS`."""
    if not said:
        return said
    left = MOST_CHARACTERS - len(said[0]["text"])
    kept: list[Said] = []
    for each in reversed(said[1:]):
        left -= len(each["text"])
        if left < 0:
            break
        kept.append(each)
    return [said[0], *reversed(kept)]

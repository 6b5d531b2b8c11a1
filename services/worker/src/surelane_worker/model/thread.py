"""Read what was said in a thread before an event: the context of a turn."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from surelane.encryption.keys import SealedError
from surelane.events import Event
from surelane.slack import Place, authorization_of, edit_of, edited_message, inner_event, object_in, text_in
from surelane_service.threads import ThreadEvent
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.slack.client import messages_of

TURN = "thread"
"""The first step of every turn. Its result is the thread before the turn's message."""

MOST_MESSAGES = 50
"""Messages of a thread that a model gets: the first one and the last ones."""
MOST_CHARACTERS = 40_000
"""Of all of them together. The oldest are left out, but not the first one."""
LONGEST_MESSAGE = 4000
"""Characters of one earlier message. The rest is cut."""
PAGE = 200
"""Messages per call. A thread of more pages than :data:`surelane_worker.slack.client.PAGES` is read up to there."""
MOST_EDITS = 500
"""Edits in a thread's channel since its newest turn. After more, history is not used: some may not be seen."""
TS = re.compile(r"\d{10}\.\d{6}", re.ASCII)

MOST_ENTITIES = 5
"""Things that the author of a message is looking at. Slack has the most relevant one first."""
ID = re.compile(r"[A-Z0-9.]{2,40}", re.ASCII)


class Said(TypedDict):
    """A message of a thread. ``ts`` is its timestamp in Slack, as far as that is known."""

    own: bool
    text: str
    ts: NotRequired[str]


@dataclass(slots=True)
class Known:
    """What history has of a thread.

    Attributes:
        since: the timestamp of the newest turn's message; without a turn, of the message that began the thread.
        older: the messages before it, as that turn got them, and as they were edited since.
        later: those from there on.
        whole: whether that is all.
    """

    since: str
    older: list[Said] = field(default_factory=list)
    later: list[Said] = field(default_factory=list)
    whole: bool = False


async def before(event: Event, ctx: Context, place: Place) -> list[Said]:
    """Return the earlier messages of the event's thread, oldest first.

    They come from history. Where it may lack some, Slack is asked for those from the newest turn on. Nothing is read
    for an event that begins a thread. Of a thread that the bot may not read, history's messages are all.
    """
    if not place.channel or not place.thread_ts or place.thread_ts == place.message_ts:
        return []
    me = text_in(authorization_of(event.payload).get("user_id"))  # Slack's envelopes name the bot's user
    try:
        known = await _in_history(event, ctx, place, me)
    except SealedError as error:
        ctx.log.warning("cannot decrypt earlier messages", error=type(error).__name__)
        known = Known(place.thread_ts)
    if not known.whole:
        me = me or str((await ctx.slack.client.auth_test())["user_id"])
        asked = await _in_slack(ctx, place, me, known.since)
        known.later = known.later if asked is None else asked
    return shortened([*known.older, *known.later])


async def _in_slack(ctx: Context, place: Place, me: str, since: str) -> list[Said] | None:
    thread: dict[str, Any] = {"channel": place.channel, "ts": place.thread_ts, "latest": place.message_ts}
    replies = ctx.slack.client.conversations_replies(**thread, oldest=since, inclusive=True, limit=PAGE)
    # Slack begins each page with the message that began the thread.
    found = {str(message.get("ts")): message async for message in messages_of(replies, ctx.log)}
    wanted = [found[ts] for ts in sorted(found) if ts >= since and ts != place.message_ts]
    return [_said(message, me) for message in wanted if message.get("text")] if found else None


async def _in_history(event: Event, ctx: Context, place: Place, me: str | None) -> Known:
    channel, root, ts = place.channel or "", place.thread_ts or "", place.message_ts or ""
    group, direct = event.group_key or "", channel.startswith("D")
    if not (TS.fullmatch(root) and TS.fullmatch(ts) and group.endswith(f":{root}")):
        return Known(root)
    fence = attempt_of(ctx).steps.fence
    groups = [group, group.removesuffix(f":{root}")][: 1 + direct]  # a direct message has no group of its own
    stored = await fence.patiently(fence.engine.thread_events, groups, channel, root, ts, TURN)
    stored.sort(key=lambda each: (each.event_ts, each.id))
    messages = [each for each in stored if edit_of(inner_event(each.payload)) is None]
    if len(stored) - len(messages) >= MOST_EDITS:
        return Known(root)
    known = Known(root, whole=any(_ts(each) == root for each in messages))
    now = dict(_as_now(each, me) for each in stored)
    for turn in [each for each in messages if each.turn][-1:]:
        steps = await fence.patiently(fence.engine.read_steps, turn.id)
        got: list[Said] = next(json.loads(each.result or "[]") for each in steps if each.name == TURN)
        known = Known(
            _ts(turn), [said for each in got if (said := now.get(each.get("ts", ""), each))], whole=True
        )
    later = [said for ts in {_ts(each) for each in messages} if (said := now[ts])]
    answers = [_answer(each) for each in messages]
    known.later = sorted(
        [*later, *(each for each in answers if each and each["text"])], key=lambda each: each["ts"]
    )
    # Slack reports each message of a person in a direct message, and in channels where the app takes them.
    heard = direct or event.slack.get("type") == "message" or any(each.whole for each in messages)
    known.whole = known.whole and heard and None not in answers
    return known


def _ts(stored: ThreadEvent) -> str:
    slack = inner_event(stored.payload)
    return str((edited_message(slack) or slack).get("ts"))


def _as_now(stored: ThreadEvent, me: str | None) -> tuple[str, Said | None]:
    """Return a message's timestamp, and the message; ``None``: it was deleted, has no text, or is the bot's."""
    slack = inner_event(stored.payload)
    message = edited_message(slack) or slack
    gone = edit_of(slack) == "message_deleted" or not message.get("text") or message.get("user") == me
    return _ts(stored), None if gone else _said(message, me)


def _answer(stored: ThreadEvent) -> Said | None:
    """Return what a turn answered, with no text if nothing was said; ``None``: what was said is not stored."""
    replies, streams = (object_in(stored.notes.get(part)) for part in ("replies", "streams"))
    posted = [
        str(each.get("ts") if isinstance(each, dict) else each)
        for each in (*replies.values(), *streams.values())
    ]
    text = stored.result.get("answer") or stored.result.get("stopped") if stored.turn else None
    if isinstance(text, str):
        return {
            "own": True,
            "text": text[:LONGEST_MESSAGE],
            "ts": max([_ts(stored), *filter(TS.fullmatch, posted)]),
        }
    return None if posted else {"own": True, "text": ""}


def _said(message: Mapping[str, Any], me: str | None) -> Said:
    text, ts = str(message["text"])[:LONGEST_MESSAGE], str(message["ts"])
    user = message.get("user") or message.get("bot_id")
    own = user is not None and user == me
    return {"own": own, "text": text if own else quoted(user, text), "ts": ts}


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
    """Leave out the oldest messages, except the first, beyond :data:`MOST_MESSAGES` and :data:`MOST_CHARACTERS`."""
    if not said:
        return said
    left = MOST_CHARACTERS - len(said[0]["text"])
    kept: list[Said] = []
    for each in reversed(said[1:][1 - MOST_MESSAGES :]):
        left -= len(each["text"])
        if left < 0:
            break
        kept.append(each)
    return [said[0], *reversed(kept)]

"""Read what was said in a thread before an event: the context of a turn."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

from surelane.codec import SealedError
from surelane.events import Event
from surelane.slack import Place, authorization_of, edit_of, edited_message, object_in, text_in
from surelane.text import text_of
from surelane_agents.calls import ThreadEvent, agent_calls
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
ALARM = re.compile(r"<!(?=channel|here|everyone|subteam)")
"""What would notify a whole channel. A model may have been asked for it by any text that it read."""
QUIET = "<\u200b!"
ID = re.compile(r"[A-Z0-9.]{2,40}", re.ASCII)


class ThreadMessage(TypedDict):
    """A message of a thread. ``ts`` is its timestamp in Slack; what is no message of the thread has none."""

    own: bool
    text: str
    ts: NotRequired[str]


class Known(NamedTuple):
    """What history has of a thread, and from which timestamp on Slack must be asked; ``None``: that is all."""

    missing: str | None
    older: Sequence[ThreadMessage] = ()
    later: Sequence[ThreadMessage] = ()


async def before(event: Event, ctx: Context, place: Place) -> list[ThreadMessage]:
    """Return the earlier messages of the event's thread, oldest first.

    They come from history. Slack is asked for what that may lack. An event that begins a thread has none.
    """
    if not place.channel or not place.thread_ts or place.thread_ts == place.message_ts:
        return []
    me = text_in(authorization_of(event.payload).get("user_id"))  # Slack's envelopes name the bot's user
    try:
        known = await _in_history(event, ctx, place, me)
    except SealedError as error:
        ctx.log.warning("cannot decrypt earlier messages", error=type(error).__name__)
        known = Known(place.thread_ts)
    asked = None if known.missing is None else await _in_slack(ctx, place, me, known.missing)
    return shortened([*known.older, *(known.later if asked is None else asked)])


async def _in_slack(ctx: Context, place: Place, me: str | None, since: str) -> list[ThreadMessage] | None:
    client = ctx.slack.client
    me = me or str((await client.auth_test())["user_id"])
    thread: dict[str, Any] = {"channel": place.channel, "ts": place.thread_ts, "latest": place.message_ts}
    replies = client.conversations_replies(**thread, oldest=since, inclusive=True, limit=PAGE)
    # Slack begins each page with the thread's first message.
    found = {str(message.get("ts")): message async for message in messages_of(replies, ctx.log)}
    wanted = [found[ts] for ts in sorted(found) if ts >= since and ts != place.message_ts]
    return [said for message in wanted if (said := _said(message, me))] if found else None


async def _in_history(event: Event, ctx: Context, place: Place, me: str | None) -> Known:
    channel, root, ts = place.channel or "", place.thread_ts or "", place.message_ts or ""
    group, direct = event.group_key or "", channel.startswith("D")
    if not (TS.fullmatch(root) and TS.fullmatch(ts) and group.endswith(f":{root}")):
        return Known(root)
    # A direct message that begins a thread is in the group of all such messages.
    groups = [group, group.removesuffix(f":{root}")] if direct else [group]
    fence = attempt_of(ctx).steps.fence
    stored = await fence.patiently(agent_calls(ctx).thread_events, groups, channel, root, ts, TURN)
    stored.sort(key=lambda each: (each.event_ts, each.id))
    messages = [each for each in stored if not object_in(each.notes).get("edit")]
    if len(stored) - len(messages) >= MOST_EDITS:
        return Known(root)
    now = {_ts(each): _as_now(each, me) for each in stored}
    since, older = root, list[ThreadMessage]()
    if turn := next((each for each in reversed(messages) if each.turn), None):
        steps = await fence.patiently(fence.engine.read_steps, turn.id)
        got: list[ThreadMessage] = next(
            (json.loads(each.result or "[]") for each in steps if each.name == TURN), []
        )
        since = _ts(turn)
        older = [said for each in got if "ts" in each and (said := now.get(each["ts"], each))]
    answers = [_answer(each) for each in messages]
    later = [said for ts in {*map(_ts, messages)} if (said := now[ts])]
    later += [said for answer in answers for said in answer or ()]
    # Slack reports each message of a person in a direct message, and in channels where the app takes them.
    heard = direct or event.slack.get("type") == "message" or any(each.whole for each in messages)
    whole = heard and None not in answers and since in map(_ts, messages)
    return Known(None if whole else since, older, sorted(later, key=lambda each: each["ts"]))


def _ts(stored: ThreadEvent) -> str:
    return str((edited_message(stored.slack) or stored.slack).get("ts"))


def _as_now(stored: ThreadEvent, me: str | None) -> ThreadMessage | None:
    """Return the message of an event or an edit; ``None``: it is deleted or the bot's, or has no text."""
    message = edited_message(stored.slack) or stored.slack
    gone = edit_of(stored.slack) == "message_deleted" or message.get("user") == me
    return None if gone else _said(message, me)


def _answer(stored: ThreadEvent) -> list[ThreadMessage] | None:
    """Return what was said in answer to a message; ``None``: that is not stored, as by another handler."""
    replies, streams = (object_in(stored.notes.get(part)) for part in ("replies", "streams"))
    posted = [str(ts) for ts in (*replies.values(), *(each["ts"] for each in streams.values()))]
    result = object_in(stored.result) if stored.turn else {}
    text = result.get("answer") or result.get("stopped")
    if not isinstance(text, str):
        return None if posted else []
    ts = max([_ts(stored), *filter(TS.fullmatch, posted)])
    return [{"own": True, "text": text[:LONGEST_MESSAGE], "ts": ts}]


def _said(message: Mapping[str, Any], me: str | None) -> ThreadMessage | None:
    text, ts = text_of(message)[:LONGEST_MESSAGE], str(message.get("ts"))
    if not text:
        return None
    user = message.get("user") or message.get("bot_id")
    own = user is not None and user == me
    return {"own": own, "text": text if own else quoted(user, text), "ts": ts}


def quiet(text: str) -> str:
    """Return a text without alarms."""
    return ALARM.sub(QUIET, text)


def quoted(user: object, text: str) -> str:
    """Return a text with its author's id in front, because a thread may have several."""
    return f"<@{user}>: {text}" if user else text


def looked_at(event: Event) -> str:
    """Return what a message's author is looking at, as a sentence, where Slack says so: to apps with the agent view."""
    entities = object_in(event.slack.get("app_context")).get("entities")
    listed = entities[:MOST_ENTITIES] if isinstance(entities, list) else []
    shown = list(filter(None, map(_entity, listed)))
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


def shortened(said: list[ThreadMessage]) -> list[ThreadMessage]:
    """Leave out the oldest messages, except the first, beyond :data:`MOST_MESSAGES` and :data:`MOST_CHARACTERS`."""
    if not said:
        return said
    left = MOST_CHARACTERS - len(said[0]["text"])
    kept: list[ThreadMessage] = []
    for each in reversed(said[1:][1 - MOST_MESSAGES :]):
        left -= len(each["text"])
        if left < 0:
            break
        kept.append(each)
    return [said[0], *reversed(kept)]

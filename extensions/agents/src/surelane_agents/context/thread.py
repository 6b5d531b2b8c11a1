"""Read what was said in a thread before an event: the context of a turn."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

from surelane.codec import SealedError, is_sealed
from surelane.slack import Place, authorization_of, edit_of, edited_message, object_in, text_in
from surelane.text import shown_beside, text_of, typed
from surelane_agents.calls import ThreadEvent, agent_calls
from surelane_worker import Context, Event
from surelane_worker.handling.context import attempt_of
from surelane_worker.handling.fence import Fence
from surelane_worker.slack.client import messages_of

TURN = "thread"
"""A step of every turn that is not refused. Its result is the thread before the turn's message."""
COMPACTED = "compacted thread"
"""A step of turns in whose thread a summary stands for the middle. Its result takes the place of that of ``TURN``."""

MOST_MESSAGES, MOST_CHARACTERS = 1000, 160_000
"""Of a thread, and of all its messages together. Of more, the oldest are left out, but not the first one."""
LONGEST_MESSAGE = 4000
"""Characters of one earlier message. The rest is cut."""
MOST_FILES = 10
"""Files of one earlier message that a model learns of."""
FILE = "id", "name", "title", "mimetype", "size", "mode", "file_access", "url_private", "url_private_download"
"""What is kept of a file."""
LONGEST_NAME = 200
UNREAD = "(You see no earlier message of this thread: Slack does not let you read it.)"
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
NAMED = re.compile(r"<@[A-Z0-9]{2,40}>", re.ASCII)


class ThreadMessage(TypedDict):
    """A message of a thread. ``ts`` is its timestamp in Slack; what is no message of the thread has none.

    ``files``: what Slack says of each file that is attached to it, as far as reading it needs that.
    ``short``: for how many messages it stands. It has the timestamp of the last of them.
    """

    own: bool
    text: str
    ts: NotRequired[str]
    files: NotRequired[list[dict[str, Any]]]
    short: NotRequired[int]


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
    known = await _in_history(event, ctx, place, me)
    asked = None if known.missing is None else await _in_slack(ctx, place, me, known.missing)
    older = [each for each in known.older if asked is None or each["ts"] < str(known.missing)]
    said = shortened([*older, *(known.later if asked is None else asked)])
    hidden = known.missing is not None and asked is None and not said
    return [{"own": False, "text": UNREAD}] if hidden else said


async def _in_slack(ctx: Context, place: Place, me: str | None, since: str) -> list[ThreadMessage] | None:
    client = ctx.slack.client
    me = me or str((await client.auth_test())["user_id"])
    thread: dict[str, Any] = {"channel": place.channel, "ts": place.thread_ts, "latest": place.message_ts}
    replies = client.conversations_replies(**thread, oldest=since, inclusive=True, limit=PAGE)
    # Slack begins each page with the thread's first message.
    found = {str(message.get("ts")): message async for message in messages_of(replies, ctx.log)}
    wanted = [found[ts] for ts in sorted(found) if ts >= since and ts != place.message_ts]
    return [said for message in wanted if (said := _said(message, me))] if found else None


async def approved_in(event: Event, ctx: Context, place: Place) -> list[list[str]]:
    """Return pairs of a person and a tool that need no question, as the thread's latest turn says."""
    turns = [object_in(each.result) for each in await _stored_in(event, ctx, place) or () if each.turn]
    latest = [each for each in turns if "approved" in each or is_sealed(each)][-1:]
    return [pair for each in latest for pair in each.get("approved", ())]


async def _stored_in(event: Event, ctx: Context, place: Place) -> list[ThreadEvent] | None:
    """Return what history has of the event's thread, oldest first; ``None`` if the event is not of that thread."""
    channel, root, ts = place.channel or "", place.thread_ts or "", place.message_ts or ""
    group, direct = event.group_key or "", channel.startswith("D")
    if not (TS.fullmatch(root) and TS.fullmatch(ts) and group.endswith(f":{root}")):
        return None
    # A direct message that begins a thread is in the group of all such messages.
    groups = [group, group.removesuffix(f":{root}")] if direct else [group]
    fence = attempt_of(ctx).steps.fence
    stored = await fence.patiently(agent_calls(ctx).thread_events, groups, channel, root, ts, TURN)
    return sorted(stored, key=lambda each: (each.event_ts, each.id))


async def _in_history(event: Event, ctx: Context, place: Place, me: str | None) -> Known:
    root, direct = place.thread_ts or "", (place.channel or "").startswith("D")
    stored = await _stored_in(event, ctx, place)
    if stored is None:
        return Known(root)
    fence = attempt_of(ctx).steps.fence
    messages = [each for each in stored if not object_in(each.notes).get("edit")]
    if len(stored) - len(messages) >= MOST_EDITS:
        return Known(root)
    now = {_ts(each): _as_now(each, me) for each in stored}
    since, older = root, list[ThreadMessage]()
    unread = {object_in(each.notes).get("edit", False): each.unread for each in stored if each.unread}
    if turn := next((each for each in reversed(messages) if each.turn), None):
        try:
            got = await _thread_of(turn.id, fence)
            since = _ts(turn)
        except SealedError as error:
            got, unread = [], {True: str(error)}
        as_now = [each if "short" in each else now.get(each.get("ts", ""), each) for each in got]
        older = [each for each in as_now if each and "ts" in each]
    if unread:
        ctx.log.warning("cannot read earlier messages", reason=next(iter(unread.values())))
    answers = [_answer(each) for each in messages]
    later = [said for ts in {*map(_ts, messages)} if (said := now[ts])]
    later += [said for answer in answers for said in answer or ()]
    # Slack reports each message of a person in a direct message, and in channels where the app takes them.
    heard = direct or event.slack.get("type") == "message" or any(each.whole for each in messages)
    whole = heard and None not in answers and since in map(_ts, messages) and not unread
    # An edit that cannot be read may be of any message.
    missing = root if True in unread else since
    return Known(None if whole else missing, older, sorted(later, key=lambda each: each["ts"]))


async def _thread_of(turn: int, fence: Fence) -> list[ThreadMessage]:
    """Return the thread before a turn's message, as the turn stored it."""
    for step in (COMPACTED, TURN):
        if got := json.loads(await fence.patiently(fence.engine.step_result, turn, step, 1)):
            return list(got)
    return []


def _ts(stored: ThreadEvent) -> str:
    return str((edited_message(stored.slack) or stored.slack).get("ts"))


def _as_now(stored: ThreadEvent, me: str | None) -> ThreadMessage | None:
    """Return the message of an event or an edit; ``None``: it is deleted or the bot's, or has no text."""
    message = edited_message(stored.slack) or stored.slack
    gone = edit_of(stored.slack) == "message_deleted" or message.get("user") == me
    if gone or not stored.unread:
        return None if gone else _said(message, me)
    return {"own": False, "text": quoted(message.get("user"), f"({stored.unread})"), "ts": _ts(stored)}


def _answer(stored: ThreadEvent) -> list[ThreadMessage] | None:
    """Return what was said in answer to a message; ``None``: that is not stored, as by another handler."""
    replies, streams = (object_in(stored.notes.get(part)) for part in ("replies", "streams"))
    posted = [str(ts) for ts in (*replies.values(), *(each["ts"] for each in streams.values()))]
    result = object_in(stored.result) if stored.turn else {}
    text = result.get("answer") or result.get("stopped")
    if not isinstance(text, str):
        return None if posted else []
    ts = max([_ts(stored), *filter(TS.fullmatch, posted)])
    return [{"own": True, "text": cut(text, LONGEST_MESSAGE), "ts": ts}]


def _said(message: Mapping[str, Any], me: str | None) -> ThreadMessage | None:
    user = message.get("user") or message.get("bot_id")
    own = user is not None and user == me
    text, ts = cut(text_of(message) if own else whole(message), LONGEST_MESSAGE), str(message.get("ts"))
    given = files_of(message)[:MOST_FILES]
    files = [{part: file[part] for part in FILE if isinstance(file.get(part), str | int)} for file in given]
    text = " ".join(filter(None, [text, *(f"(file: {named(file)})" for file in files)]))
    if not text:
        return None
    said: ThreadMessage = {"own": own, "text": text if own else quoted(user, text), "ts": ts}
    return {**said, "files": files} if files else said


def whole(message: Mapping[str, Any]) -> str:
    """Return the text of a message, and what it shows beside it, such as a forwarded message or an app's alert."""
    return "\n".join(filter(None, [text_of(message), shown_beside(message)]))


def files_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the files of a message, and of messages that are forwarded in it."""
    shared = message.get("attachments")
    forwarded = [
        each for each in map(object_in, shared if isinstance(shared, list) else ()) if each.get("is_share")
    ]
    listed = [each.get("files") for each in (message, *forwarded)]
    return [object_in(file) for files in listed if isinstance(files, list) for file in files]


def named(file: Mapping[str, Any]) -> str:
    """Return a file's name for a model."""
    return typed(str(file.get("name") or file.get("title") or "file"))[:LONGEST_NAME]


def cut(text: str, most: int) -> str:
    """Return the beginning of a text, and say how long it is where it has more characters."""
    return text if len(text) <= most else f"{text[:most]}… (cut; it has {len(text):,} characters)"


def quiet(text: str) -> str:
    """Return a text without alarms."""
    return ALARM.sub(QUIET, text)


def quoted(user: object, text: str) -> str:
    """Return a text with its author's id in front, because a thread may have several."""
    return f"<@{user}>: {text}" if user else text


def looked_at(event: Event) -> str:
    """Return what a message's author is looking at, as a sentence, where Slack says so: to apps with the agent view."""
    entities = object_in(event.slack.get("app_context")).get("entities")
    shown = list(filter(None, map(_entity, entities[:MOST_ENTITIES]))) if isinstance(entities, list) else []
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


def shortened(
    said: list[ThreadMessage], messages: int = MOST_MESSAGES, characters: int = MOST_CHARACTERS
) -> list[ThreadMessage]:
    """Leave out the oldest messages but the first, beyond these numbers of them all. One that says so is in between."""
    kept = last_of(said[1:], messages - 1, characters - sum(len(each["text"]) for each in said[:1]))
    gone = said[1 : len(said) - len(kept)]
    return [*said[:1], *([stands_for(gone)] if gone else []), *kept]


def last_of(said: Sequence[ThreadMessage], messages: int, characters: int) -> list[ThreadMessage]:
    """Return the last messages that have so many characters together."""
    kept: list[ThreadMessage] = []
    for each in reversed(said[-messages:]):
        characters -= len(each["text"])
        if characters < 0:
            break
        kept.append(each)
    return kept[::-1]


def stands_for(gone: Sequence[ThreadMessage], summary: str = "") -> ThreadMessage:
    """Return what a model gets in place of messages: that they are left out, or a summary.

    It has the ids of all whom they name, so that an erasure of a person finds it.
    """
    count = sum(each.get("short", 1) for each in gone)
    named = " ".join(sorted({found for each in gone for found in NAMED.findall(each["text"])}))
    text = f"({count:,} earlier messages are left out. You do not see them.)"
    if summary:
        text = (
            f"(A summary of {count:,} earlier messages, which you do not see. They name: {named})\n{summary}"
        )
    return {"own": False, "text": text, "ts": gone[-1].get("ts", ""), "short": count}

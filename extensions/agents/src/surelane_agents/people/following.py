"""Hear the further messages of a thread in which the agent has answered, until it is told to stop.

What decides is stored: the thread's messages since its newest turn, and people's rules.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from surelane.events import Event
from surelane.slack import Place, authorization_of, names_bot, text_in
from surelane_agents.calls import AgentCalls, patiently
from surelane_agents.context.thread import TURN
from surelane_agents.people.board import about, stored_about
from surelane_agents.people.rules import RULES
from surelane_service.subscriptions import IN_CHANNELS
from surelane_worker.handling.context import Context, attempt_of

Follow = Literal["thread", "mention", "all"]
"""Which messages of channels an agent hears that do not name it: those of threads where it answers, none, or all."""
MENTIONED = "slack.app_mention"
HEARD = (MENTIONED, "slack.message.im", *IN_CHANNELS)
"""The kinds of messages that an agent hears."""
_MENTION = re.compile(r"<(?:@|!subteam\^)([A-Z0-9]+)[^<>]*>|<!(channel|here|everyone)\b[^<>]*>")
_STOP = re.compile(r"\W*stop\W*", re.IGNORECASE)
_RULE = re.compile(r"\W*mentions? only\W*", re.IGNORECASE)


def is_named(event: Event) -> bool:
    """Return whether an event is for the agent by itself: all but messages of channels that do not name the bot."""
    return event.kind not in IN_CHANNELS or names_bot(event.payload)


def says_stop(message: Mapping[str, Any]) -> bool:
    """Return whether a message says nothing but "stop", beside the names of people and bots."""
    return bool(_STOP.fullmatch(_MENTION.sub("", text_in(message.get("text")) or "")))


async def unheard(
    event: Event, ctx: Context, place: Place, follow: Follow, *, further: bool = False
) -> str | None:
    """Return why a message is not for the agent; ``None``: it is. Most are dropped without a statement.

    ``further``: it is not the message of this turn, but a further one of its thread.
    """
    if is_named(event) or follow == "all":
        return None
    if follow == "mention" or place.around is None:
        return "it does not name the agent"
    if event.slack.get("bot_id") or not place.user:
        return "no person wrote it"
    if not further and await attempt_of(ctx).steps.past.all():
        return None  # its turn has begun
    if _first_named(event.slack):
        return "it is for somebody else"
    group, at = event.group_key or "", event.event_ts
    said = await patiently(ctx, AgentCalls.said_since_turn, group, at, TURN)
    if not said or any(map(says_stop, said[1:])):
        return "the agent does not follow its thread"
    if place.user in talking(said[1:], text_in(authorization_of(event.payload).get("user_id"))):
        return "people talk with each other"
    if any(
        _RULE.fullmatch(text)
        for _, _, text, _ in await stored_about(ctx, about(event)[0], list(RULES.keys(event)))
    ):
        return "a rule says: mention only"
    return None


def _first_named(message: Mapping[str, Any]) -> str | None:
    """Return the person or group whom a message names first."""
    found = _MENTION.search(text_in(message.get("text")) or "")
    return found and (found[1] or found[2])


def talking(said: Iterable[Mapping[str, Any]], me: str | None) -> set[str]:
    """Return the two people who talk with each other at the end of a thread's messages.

    One has named the other, and since then nobody else has written, or named the bot: ``me``.
    """
    pair = set[str]()
    for message in said:
        author, named = str(message.get("user")), _first_named(message)
        if named:
            pair = set() if named == me else {author, named}
        elif author not in pair:
            pair = set()
    return pair

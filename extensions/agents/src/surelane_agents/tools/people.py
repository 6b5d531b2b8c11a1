"""Tools that look up people, user groups and public channels in Slack, and write to a person."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic_ai import RunContext, ToolFailed
from slack_sdk.errors import SlackApiError

from surelane.slack import object_in, place_of, reporter_of, text_in
from surelane.text import escaped_once
from surelane_agents.context.thread import quiet
from surelane_agents.people.board import cleaned
from surelane_agents.reply.voice import UNFURLED
from surelane_agents.tools.functions import approved
from surelane_worker import Context
from surelane_worker.handling.context import attempt_of
from surelane_worker.slack.client import final_reason

MOST, PAGES, PAGE = 20, 10, 200
"""What is found at most, and the pages that are read for it, of so many."""
LONGEST = 3000
"""Characters of a message to a person."""
WROTE = "<@{}> lets me tell you:\n{}"


async def find_people(run: RunContext[Context], query: str) -> list[dict[str, str]]:
    """Find people of this workspace by a part of their name or title. Write <@id> to mention one."""

    def shape(user: Mapping[str, Any]) -> dict[str, Any]:
        profile = object_in(user.get("profile"))
        named = {name: profile.get(name) for name in ("real_name", "display_name", "title")}
        return {} if user.get("deleted") else {"id": user.get("id"), **named, "time_zone": user.get("tz")}

    return await _found(run, run.deps.slack.client.users_list, "members", query, shape, limit=PAGE)


async def find_groups(run: RunContext[Context], query: str) -> list[dict[str, str]]:
    """Find user groups by a part of their name, handle or description."""

    def shape(group: Mapping[str, Any]) -> dict[str, Any]:
        return {name: group.get(name) for name in ("id", "name", "handle", "description")}

    return await _found(run, run.deps.slack.client.usergroups_list, "usergroups", query, shape)


async def find_channels(run: RunContext[Context], query: str) -> list[dict[str, str]]:
    """Find public channels by a part of their name, topic or purpose. Write <#id> to mention one."""

    def shape(channel: Mapping[str, Any]) -> dict[str, Any]:
        texts = {name: object_in(channel.get(name)).get("value") for name in ("topic", "purpose")}
        private = channel.get("is_private") is True or channel.get("is_im") is True
        return {} if private else {"id": channel.get("id"), "name": channel.get("name"), **texts}

    given = {"types": "public_channel", "exclude_archived": True, "limit": PAGE}
    return await _found(run, run.deps.slack.client.conversations_list, "channels", query, shape, **given)


@approved
async def write_to_person(run: RunContext[Context], user: str, text: str) -> str:
    """Write a direct message to a person, by the id that find_people returns. It says who asked for it."""
    (event, *_) = attempt_of(run.deps).events
    asker = place_of(event.payload).user
    if not asker:
        raise ToolFailed("nobody asked for the message")
    if len(text) > LONGEST:
        raise ToolFailed(f"the text has more than {LONGEST:,} characters")
    with _told():
        opened = await run.deps.slack.client.conversations_open(users=[user])
        said = WROTE.format(asker, escaped_once(quiet(text)))
        await run.deps.slack.reply(event, said, channel=opened["channel"]["id"], thread_ts=None, **UNFURLED)
    return "written"


async def _found(
    run: RunContext[Context],
    method: Any,
    key: str,
    query: str,
    shape: Callable[[Mapping[str, Any]], dict[str, Any]],
    **given: Any,
) -> list[dict[str, str]]:
    """Return what has all words of a query in its texts. People wrote these: each is one line."""
    (event, *_), words = attempt_of(run.deps).events, query.casefold().split()
    _, workspace, wide = reporter_of(event.payload)
    team = {"team_id": place_of(event.payload).workspace or workspace} if wide else {}

    def matching(page: Mapping[str, Any]) -> Iterator[dict[str, str]]:
        for each in map(shape, map(object_in, page.get(key) or ())):
            texts = {name: cleaned(text) for name, value in each.items() if (text := text_in(value))}
            if all(word in " ".join(texts.values()).casefold() for word in words) and texts:
                yield texts

    found, pages = list[dict[str, str]](), 0
    with _told():
        async for page in await method(**given, **team):  # slack-sdk follows the cursors
            found += matching(page)
            pages += 1
            if pages == PAGES:
                break
    return found[:MOST]


@contextmanager
def _told() -> Iterator[None]:
    """Tell the model of what Slack refuses for good."""
    try:
        yield
    except SlackApiError as error:
        if (reason := final_reason(error)) is None:
            raise
        raise ToolFailed(f"Slack answers {reason}") from None

"""Who may use an agent and its tools: lists of people, user groups and channels, in settings and beside tools."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator

from surelane_agents.context.person import BOT, GONE, Asker, framed
from surelane_worker import Context, Event
from surelane_worker.handling.asks import ignoring_final_errors

EVERYONE, MEMBERS, DIRECT = "everyone", "members", "direct"
WORDS = frozenset({EVERYONE, MEMBERS, "guests", "external", "bots", DIRECT})
"""``direct`` is a place: direct messages with the agent."""
_ID = re.compile(r"[UWSCGD][A-Z0-9]{2,}", re.ASCII)
REFUSAL = "You may not use me here. Please ask the people who run me. Only you see this."
DIRECT_REFUSAL = "You may not use me. Please ask the people who run me."
OFF = "\nThe person may not use these tools, so you do not have them: {}. Say so if it matters."

Listed = str | Iterable[str]


@dataclass(frozen=True, slots=True)
class Allow:
    """People, by what they are, their ids or their user groups, and the channels where they may."""

    people: frozenset[str]
    places: frozenset[str]

    @property
    def groups(self) -> frozenset[str]:
        return frozenset(each for each in self.people if each.startswith("S"))

    def permits(self, person: Asker, channel: str | None) -> bool:
        """Return whether a person may, in a channel. A job that names nobody may: its producer is the team."""
        if not person["asked"]:
            return True
        here = {channel or "", DIRECT if (channel or "").startswith("D") else ""}
        who = {EVERYONE, person["sort"], person["id"], *person["groups"]}
        if person["sort"] == GONE:
            return False
        return not (self.places and self.places.isdisjoint(here)) and not self.people.isdisjoint(who)


def allow(listed: Listed) -> Allow:
    """Read words and ids from a list, or from a text with commas. Without people it means members."""
    given = listed.split(",") if isinstance(listed, str) else listed
    names = frozenset(each.strip() for each in given) - {""}
    wrong = sorted(each for each in names if each not in WORDS and not _ID.fullmatch(each))
    if wrong or not names:
        raise ValueError(f"{', '.join(wrong) or 'nothing'}: write ids or {', '.join(sorted(WORDS))}")
    places = frozenset(each for each in names if each == DIRECT or each[0] in "CGD")
    return Allow((names - places) or frozenset({MEMBERS}), places)


def _checked(listed: Any) -> Any:
    allow(listed)
    return listed


AllowText = Annotated[str, AfterValidator(_checked)]
AllowList = Annotated[str | list[str], AfterValidator(_checked)]


class Access:
    """What one person may do in one turn."""

    def __init__(self, person: Asker, channel: str | None, tools: Allow) -> None:
        """``tools``: who may use tools that have no list of their own."""
        self.person, self._channel, self._tools = person, channel, tools
        self._off: list[str] = []

    def of(self, own: Listed | None) -> Allow:
        """Return who may use a tool, or a server's tools. Its own list counts in place of all."""
        return self._tools if own is None else allow(own)

    def has(self, tool: str, own: Listed | None) -> bool:
        """Return whether the person may use a tool, or a server's tools."""
        permitted = self.of(own).permits(self.person, self._channel)
        if not permitted and tool not in self._off:
            self._off.append(tool)
        return permitted

    def told(self) -> str:
        """Return what the model is told of the person, and of the tools that it lacks for it."""
        return framed(self.person) + (OFF.format(", ".join(self._off)) if self._off else "")


async def refuse(event: Event, ctx: Context, person: Asker, channel: str | None) -> dict[str, Any]:
    """Tell a person alone that it may not use the agent, once. Bots are not told: they might answer."""

    async def tell() -> None:
        with ignoring_final_errors():
            if (channel or "").startswith("D"):
                await ctx.slack.reply(event, DIRECT_REFUSAL)
            else:
                await ctx.slack.whisper(event, REFUSAL)

    ctx.log.info("a person may not use the agent", person=person["id"], sort=person["sort"])
    if channel and person["id"] and person["sort"] != BOT and event.kind.startswith("slack."):
        await ctx.step("refused", tell)
    return {"answer": None, "stopped": DIRECT_REFUSAL}

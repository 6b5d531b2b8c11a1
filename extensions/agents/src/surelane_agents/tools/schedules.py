"""Tools by which people let an agent answer at set times: "every Monday at nine, summarise #incidents here".

A schedule of the queue stores an ``agent-turn`` for each time. That is the maker's request, with the maker's rights as
they are then.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, Literal

from pydantic_ai import RunContext, ToolFailed

from surelane.codec import SEALED
from surelane_agents.calls import AgentCalls, Schedule, patiently
from surelane_agents.people.board import about, is_admin
from surelane_agents.tools.functions import ASKER, approved
from surelane_service.cron import Cron, zone_of
from surelane_worker import Context, Event
from surelane_worker.handling.context import attempt_of
from surelane_worker.slack.tokens import owner_fields

KIND = "agent-turn"
MOST, LONGEST = 10, 2000
"""Schedules of one person, and characters of what one asks."""
PREFIX = "chat"
"""How the names of these schedules begin. Behind it are workspace, maker and a number."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Who asks for a change, in which channel."""

    ctx: Context
    event: Event
    workspace: str
    channel: str
    person: str

    def name(self, *more: str) -> str:
        return ":".join((PREFIX, self.workspace, *more))

    async def stored(self, prefix: str) -> list[Schedule]:
        return await patiently(self.ctx, AgentCalls.read_schedules, prefix)

    async def set(self, one: Schedule) -> None:
        fence = attempt_of(self.ctx).steps.fence
        await fence.patiently(partial(fence.engine.set_cron, overlap="skip", **one._asdict()))

    async def delete(self, name: str) -> None:
        fence = attempt_of(self.ctx).steps.fence
        await fence.patiently(fence.engine.delete_cron, name)


def _asked(run: RunContext[Context]) -> _Asked:
    event = attempt_of(run.deps).events[0]
    asked = _Asked(run.deps, event, *about(event))
    if not asked.workspace or not asked.person:
        raise ToolFailed("nobody asked for it")
    return asked


@partial(approved, by=ASKER)
async def schedule(run: RunContext[Context], cron: str, time_zone: str, request: str) -> str:
    """Answer a request in this channel at set times, as if the person who asks now asked it then.

    Args:
        cron: five fields, of which the first is one number: "0 9 * * 1" is each Monday at nine. At most once an hour.
        time_zone: of these times: that of the person who asks, such as Europe/Berlin, unless they say another.
        request: what to answer then. It stands alone: this conversation is not known then.
    """
    asked = _asked(run)
    if not asked.channel or not request.strip() or len(request) > LONGEST:
        raise ToolFailed(f"a request has up to {LONGEST:,} characters, and needs a channel")
    try:
        following = Cron(cron, time_zone).next_firing(datetime.now(UTC))
    except ValueError as error:
        raise ToolFailed(str(error)) from None
    if not cron.split(maxsplit=1)[0].isdecimal():
        raise ToolFailed("it may run once an hour at most: the first field is one number")
    # The same in each attempt, so a call that is repeated after a crash makes one schedule.
    number = sha256(f"{asked.event.id} {run.run_step} {run.tool_call_id}".encode()).hexdigest()[:8]
    name = asked.name(asked.person, number)
    who = {"team_id": asked.workspace, "channel": asked.channel, "user": asked.person}
    payload = {**who, **owner_fields(asked.event), "text": request}
    await asked.set(Schedule(name, KIND, cron, time_zone, paused=False, next_at=following, payload=payload))
    # Calls of one response run at once: of those, the last ones go.
    if name in [each.name for each in await asked.stored(asked.name(asked.person, ""))][MOST:]:
        await asked.delete(name)
        raise ToolFailed(f"{MOST} schedules of this person are there already: remove one first")
    return f"{name} is set. It begins at {_shown(following, time_zone)}."


async def list_schedules(run: RunContext[Context]) -> list[dict[str, Any]] | str:
    """List the schedules of the person who asks; for an admin, those of all people in this workspace."""
    asked = _asked(run)
    admin = await is_admin(asked.ctx, asked.workspace, asked.person)
    found = await asked.stored(asked.name("" if admin else f"{asked.person}:"))
    return [_listed(each, asked.person) for each in found] or "There are none."


@partial(approved, by=ASKER)
async def change_schedule(
    run: RunContext[Context], name: str, change: Literal["pause", "resume", "remove"]
) -> str:
    """Pause, resume or remove a schedule, by its name in list_schedules. Its maker and admins may."""
    asked = _asked(run)
    found = [each for each in await asked.stored(asked.name("")) if each.name == name]
    own = name.startswith(asked.name(asked.person, ""))
    if not found or not (own or await is_admin(asked.ctx, asked.workspace, asked.person)):
        raise ToolFailed("the person has no schedule of this name, and is no admin")
    (known,) = found
    if change == "remove":
        await asked.delete(name)
        return "It is removed."
    if SEALED in known.payload:
        raise ToolFailed("it cannot be decrypted: remove it")
    following = Cron(known.schedule, known.time_zone).next_firing(datetime.now(UTC))
    await asked.set(known._replace(paused=change == "pause", next_at=following))
    return "It is paused." if change == "pause" else f"It goes on at {_shown(following, known.time_zone)}."


def _listed(one: Schedule, person: str) -> dict[str, Any]:
    maker = one.name.split(":")[2]
    return {
        "name": one.name,
        "maker": f"<@{maker}>",
        "channel": f"<#{one.payload.get('channel')}>",
        "times": f"{one.schedule} ({one.time_zone})",
        "next": "paused" if one.paused else _shown(one.next_at, one.time_zone),
        # What somebody asked elsewhere is not for everybody here.
        "request": one.payload.get("text") if maker == person else "(of another person)",
    }


def _shown(time: datetime, zone: str) -> str:
    return f"{time.astimezone(zone_of(zone)):%A, %d %B %Y, %H:%M} ({zone})"

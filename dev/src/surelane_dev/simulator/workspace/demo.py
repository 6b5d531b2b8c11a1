"""Make the workspace that a simulator starts with."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from surelane_dev.simulator.workspace.model import Channel, Group, User, by_id
from surelane_dev.simulator.workspace.workspace import Workspace

PEOPLE = (
    User("U0ADA00001", "ada", "Ada Byron"),
    User("U0GRACE001", "grace", "Grace Murray", is_admin=True),
    User("U0KATH0001", "katherine", "Katherine Coleman"),
)
ON_CALL = Group("S0ONCALL01", "oncall", "On call", (PEOPLE[0].id, PEOPLE[1].id))
BOT = User("U0SURELANE", "surelane", "Surelane", is_bot=True)

GRID = "E0ACMEGRID"
"""An Enterprise Grid organization."""
OTHERS = {
    "T0ACMEEAST": ("Acme East", GRID, ("Edith Clarke", "Irene Joliot")),
    "T0ACMEWEST": ("Acme West", GRID, ("Mary Fairfax", "Emma Castelnuovo")),
    "T0BAKERY01": ("Bakery", None, ("Sarah Marks", "Ida Tacke")),
}
"""The workspaces that can install the app by OAuth: their names, their organization, and their people."""

SHARED = "C0SHARED01"
"""The channel *orders*, which Acme East and Bakery share."""


def other_workspaces(app_id: str, now: Callable[[], float] = time.time) -> list[Workspace]:
    """Return the workspaces beside the demo workspace, each with two people, the bot, and a channel.

    Two of them share another channel, as organizations do with Slack Connect.
    """
    others = {
        team_id: workspace_of(team_id, name, enterprise, app_id, people, now)
        for team_id, (name, enterprise, people) in OTHERS.items()
    }
    east, bakery = others["T0ACMEEAST"], others["T0BAKERY01"]
    everybody = {user for workspace in (east, bakery) for user in workspace.users}
    east.share(Channel(SHARED, "orders", everybody, "Acme East and Bakery share this channel"), bakery)
    return [*others.values()]


def workspace_of(
    team_id: str,
    name: str,
    enterprise_id: str | None,
    app_id: str,
    people: Iterable[str] = ("Edith Clarke",),
    now: Callable[[], float] = time.time,
) -> Workspace:
    """Return a workspace with these people, the bot, a channel and direct messages."""
    suffix = team_id[2:]
    persons = [User(f"U{2 * at}{suffix}", name.split()[0].lower(), name) for at, name in enumerate(people)]
    bot = User(f"U1{suffix}", "surelane", "Surelane", is_bot=True)
    everybody = {bot.id, *(person.id for person in persons)}
    rooms = [Channel(f"C0{suffix}", "general", everybody, "Talk to @Surelane here")]
    ids = {"team_id": team_id, "app_id": app_id, "bot_id": f"B0{suffix}", "enterprise_id": enterprise_id}
    return _workspace(name, bot, persons, rooms, now=now, **ids)


def _workspace(
    name: str,
    bot: User,
    people: Sequence[User],
    rooms: Sequence[Channel],
    **more: Any,  # noqa: ANN401 - its other fields
) -> Workspace:
    direct = (Channel(f"D{each.id[1:]}", each.name, {each.id, bot.id}, peer=each.id) for each in people)
    channels = {room.id: room for room in (*rooms, *direct)}
    return Workspace(name=name, bot=bot, users=by_id((*people, bot)), channels=channels, **more)


def name_bot(workspace: Workspace, name: str, real_name: str) -> None:
    """Give the bot the names of its app's manifest."""
    bot = workspace.bot = replace(workspace.bot, name=name, real_name=real_name)
    workspace.users[bot.id] = bot
    for channel in workspace.channels.values():
        channel.topic = channel.topic.replace("@Surelane", f"@{real_name}")


def demo_workspace(now: Callable[[], float] = time.time) -> Workspace:
    """Return a workspace with three people, the bot, its direct messages, and channels, one of them without the bot."""
    people = {person.id for person in PEOPLE}
    rooms = [
        Channel("C0GENERAL1", "general", {*people, BOT.id}, "Talk to @Surelane here"),
        Channel("C0SUPPORT1", "support", {*people, BOT.id}, "Questions from customers"),
        Channel("C0LOADTEST", "load-test", {*people, BOT.id}, "Where the load command writes"),
        Channel("C0LOUNGE01", "lounge", set(people), "The bot is not in here"),
    ]
    ids = {"team_id": "T0SURELANE", "app_id": "A0SURELANE", "bot_id": "B0SURELANE"}
    workspace = _workspace("Surelane", BOT, PEOPLE, rooms, now=now, **ids)
    workspace.groups[ON_CALL.id] = ON_CALL
    return workspace

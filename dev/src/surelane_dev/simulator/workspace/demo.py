"""Make the workspace that a simulator starts with."""

import time
from collections.abc import Callable

from surelane_dev.simulator.workspace.model import Channel, User, by_id
from surelane_dev.simulator.workspace.workspace import Workspace

PEOPLE = (
    User("U0ADA00001", "ada", "Ada Byron"),
    User("U0GRACE001", "grace", "Grace Murray"),
    User("U0KATH0001", "katherine", "Katherine Coleman"),
)
BOT = User("U0SURELANE", "surelane", "Surelane", is_bot=True)


def demo_workspace(now: Callable[[], float] = time.time) -> Workspace:
    """Return a workspace with three people, the bot, its direct messages, and channels, one of them without the bot."""
    people = {person.id for person in PEOPLE}
    rooms = [
        Channel("C0GENERAL1", "general", {*people, BOT.id}, "Talk to @Surelane here"),
        Channel("C0SUPPORT1", "support", {*people, BOT.id}, "Questions from customers"),
        Channel("C0LOADTEST", "load-test", {*people, BOT.id}, "Where the load command writes"),
        Channel("C0LOUNGE01", "lounge", set(people), "The bot is not in here"),
    ]
    rooms += [Channel(f"D{p.id[1:]}", p.name, {p.id, BOT.id}, peer=p.id) for p in PEOPLE]
    return Workspace(
        team_id="T0SURELANE",
        name="Surelane",
        app_id="A0SURELANE",
        bot_id="B0SURELANE",
        bot=BOT,
        users=by_id((*PEOPLE, BOT)),
        channels={room.id: room for room in rooms},
        now=now,
    )

"""Count whose the app's connections of Socket Mode are: ours, of all processes, or another client's.

Slack says how many connections an app has, only as it opens one. Ours are counted in the database: before one opens,
and until it has ended. So they are never too few, and what is more in Slack's number is another client's.
"""

import asyncio
import os
import secrets
import socket
from contextlib import suppress
from datetime import timedelta

from surelane.calls import Pool
from surelane_service.common.durations import jittered
from surelane_service.intake import Intake, Sockets
from surelane_service.logs import get_logger

EVERY = timedelta(seconds=20)
"""Until a process says again how many it has. One that is silent for a minute has none."""
SURE = timedelta(seconds=5)
"""After which Slack's number is asked for again where it shows others for the first time: one of ours may just end."""
WITHIN = 1.0
"""Seconds that saying so may take. Connections do not wait for longer."""
AGAIN, CALM = timedelta(minutes=2), timedelta(minutes=5)
"""After which Slack's number is asked for again: while others have connections, and while they have none.

Slack allows an app about one new connection a minute.
"""
WARNING = (
    "another client holds Socket Mode connections of this app: Slack gives each event to one connection only,"
    " so it takes events from us"
)

_logger = get_logger(__name__)


class Census:
    """Count the connections of one app.

    ``held``: those of this process that are open or opening. ``others``: those of other clients, as last known.
    """

    def __init__(self, pool: Pool, token: str) -> None:
        """``token``: the app-level token, whose third part is the app's id."""
        self.held = 0
        self.others = 0
        self._unsure = False
        self._intake = Intake(pool)
        self._name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._app_id = next(iter(token.split("-")[2:3]), "")
        self._changed = asyncio.Event()

    async def opening(self) -> None:
        self.held += 1
        await self.say()

    def ended(self) -> None:
        self.held -= 1
        self._changed.set()

    async def say(self, of_the_app: int | None = None) -> Sockets | None:
        """Say how many this process has; ``of_the_app``: Slack said that the app has so many. ``None``: not stored."""
        try:
            async with asyncio.timeout(WITHIN):
                seen = await self._intake.announce_sockets(
                    self._name, self._app_id, self.held, of_the_app=of_the_app
                )
        except Exception as error:  # noqa: BLE001 - connections stand without the count
            _logger.debug("connections are not counted", error=type(error).__name__)
            return None
        self._note(seen)
        return seen

    async def stale(self) -> bool:
        """Wait until it is time to say how many there are, and say it. Return whether to ask for Slack's number."""
        with suppress(TimeoutError):
            async with asyncio.timeout(jittered(EVERY)):
                await self._changed.wait()
        self._changed.clear()
        if self._unsure:
            await asyncio.sleep(SURE.total_seconds())
        seen = await self.say()
        if seen is None or seen.told_ago is None:
            return False
        if seen.unsure:
            return seen.told_ago >= SURE * 0.9
        return seen.told_ago.total_seconds() > jittered(AGAIN if seen.others else CALM)

    async def leave(self) -> None:
        """Say that this process ends."""
        with suppress(Exception):
            async with asyncio.timeout(WITHIN):
                await self._intake.announce_sockets(self._name, self._app_id, None)

    def _note(self, seen: Sockets) -> None:
        others, self._unsure = seen.others or 0, seen.unsure
        if seen.unsure:
            self._changed.set()
        if others and others != self.others:
            _logger.warning(WARNING, others=others, ours=seen.ours)
        elif self.others and not others:
            _logger.info("no other client holds Socket Mode connections of this app any more", ours=seen.ours)
        self.others = others

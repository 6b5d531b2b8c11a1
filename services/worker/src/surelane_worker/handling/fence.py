"""Send the statements that hold only while a claim of an event stands, until the database answers them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

from surelane.errors import DatabaseRefused, DatabaseUnavailable, described, refuses_call
from surelane.events import Event
from surelane_service.engine import Engine, Settled
from surelane_service.logs import Logger
from surelane_worker.slack.notes import ClaimLostError

FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two tries of a statement while another transaction has the event locked."""
AWAY = 0.25
"""Seconds between two tries while the database cannot be reached, or another transaction holds a lock."""

Answer = TypeVar("Answer")
Given = ParamSpec("Given")


@dataclass(frozen=True, slots=True)
class Fence:
    """An event's id and claim, with which its statements are sent."""

    engine: Engine
    event: Event
    log: Logger
    check_claim: Callable[[], Awaitable[None]]

    async def send(
        self,
        statement: Callable[Concatenate[int, int, Given], Awaitable[Answer]],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> Answer:
        """Send a fenced statement until the event is not locked. Return its answer, or the tuple that begins with it.

        Raises:
            ClaimLostError: the claim no longer stands.
        """
        pause = FIRST_PAUSE
        while True:
            answered = await self.patiently(statement, self.event.id, self.event.claim, *given, **named)
            answer = answered[0] if isinstance(answered, tuple) else answered
            if answer == Settled.STALE:
                raise ClaimLostError
            if answer != Settled.BUSY:
                return answered
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def patiently(
        self, statement: Callable[Given, Awaitable[Answer]], *given: Given.args, **named: Given.kwargs
    ) -> Answer:
        """Send a statement until the database answers. Stop at the latest when the lease ends.

        Only a refusal of the statement itself is the handler's: the server's state may be repaired meanwhile.
        """
        warned = False
        while True:
            try:
                return await statement(*given, **named)
            except (DatabaseUnavailable, DatabaseRefused) as error:
                if refuses_call(error):
                    raise
                if not warned:
                    self.log.warning("a step waits for the database", **described(error))
                warned = True
            await asyncio.sleep(AWAY)
            await self.check_claim()

"""Steady traffic from the simulator, which delivers and retries as Slack does, and what became of every event."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import Any

from dev.simulator.client import SimulatorClient

from tests.chaos.handlers import SECONDS
from tests.scenario import CHANNEL, System

RATE = 5.0
"""Events a second."""
LATE = 3.0
"""Seconds that an event may take beyond what its handler does, on a system that is well."""
QUIET = 15
"""So many quick events in a row, taken at once and soon handled, make a system that is well."""


@dataclass(frozen=True)
class Story:
    """One event: what the sender saw of it, and what history says."""

    event_id: str
    thread_ts: str
    takes: float
    attempts: list[dict[str, Any]]
    """The sender's, as the simulator lists them."""
    finished_at: float | None = None
    outcome: str | None = None

    @property
    def acknowledged_at(self) -> float | None:
        """When the sender had its 200."""
        return next((_ended(one) for one in self.attempts if one["status"] == 200), None)

    @property
    def troubles(self) -> list[float]:
        """The moments at which the system was seen not to be well: not taking this event, or late with it."""
        refused = [one["at"] for one in self.attempts if one["status"] != 200]
        return refused + ([self.finished_at] if self.finished_at and self.lateness > LATE else [])

    @property
    def lateness(self) -> float:
        """Seconds until now or its end, beyond what its handler takes."""
        if self.acknowledged_at is None:
            return 0.0
        return (self.finished_at or time.time()) - self.acknowledged_at - self.takes


def _ended(attempt: dict[str, Any]) -> float:
    return float(attempt["at"] + attempt["ms"] / 1000)


class Traffic:
    """Mentions at a steady rate: every fifth a slow one, the others three to a thread."""

    def __init__(self, simulator: SimulatorClient, system: System) -> None:
        self._simulator = simulator
        self._system = system
        self._sent: dict[str, Story] = {}

    async def flow(self) -> None:
        """Send until cancelled, also after errors."""
        began, thread = time.monotonic(), ""
        for number in count():
            await asyncio.sleep(began + number / RATE - time.monotonic())
            kind = "slow" if number % 5 == 4 else "quick"
            alone = kind == "slow" or number % 3 == 0
            fields = {} if alone else {"thread_ts": thread}
            said = await self._simulator.say(f"{kind} {number}", mention=True, **fields)
            (event,), message = said["events"], said["message"]
            root = fields.get("thread_ts", message["ts"])
            thread = thread if kind == "slow" else root
            self._sent[event["id"]] = Story(event["id"], root, SECONDS[kind], [])

    async def stories(self) -> list[Story]:
        """What became of the events until now, in the order they were sent."""
        sent = list(self._sent.values())
        listed = (await self._simulator.request("GET", "/control/deliveries"))["deliveries"]
        attempts = {one["id"]: one["attempts"] for one in listed}
        ended = await self._ended()
        return [
            Story(
                one.event_id, one.thread_ts, one.takes, attempts[one.event_id], *ended.get(one.event_id, ())
            )
            for one in sent
        ]

    async def _ended(self) -> dict[str, tuple[float, str]]:
        keys = ", ".join(f"'{event_id}'" for event_id in self._sent)
        rows = await self._system.query(
            "select coalesce(jsonb_object_agg(item_key, jsonb_build_array(extract(epoch from finished_at), outcome)),"
            f" '{{}}') from agent.event_hist where item_key in ({keys or 'null'})"
        )
        return {key: tuple(row) for key, row in json.loads(rows).items()}

    async def well(self, since: float, within: float) -> None:
        """Wait until a row of events sent after ``since`` was taken at once and handled soon.

        Raises:
            AssertionError: that did not happen in time.
        """
        deadline = time.monotonic() + within
        while not _well(stories := await self._seen(), since):
            late = [story for story in stories if story.troubles][-5:]
            assert time.monotonic() < deadline, f"not well within {within} s; last troubles: {late}"
            await asyncio.sleep(0.5)

    async def _seen(self) -> list[Story]:
        try:
            return await self.stories()
        except AssertionError:  # nothing can be asked while the database is away
            return []

    async def settled(self, within: float) -> list[Story]:
        """Wait until the sender has done with every event, and all acknowledged ones are in history."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            stories = await self.stories()
            if all(story.acknowledged_at and story.finished_at for story in stories):
                return stories
            await asyncio.sleep(0.5)
        return await self.stories()

    async def replies(self, stories: list[Story]) -> Counter[str]:
        """What the bot said in the threads, and how often."""
        said: Counter[str] = Counter()
        for thread_ts in sorted({story.thread_ts for story in stories}):
            page = await self._system.web.conversations_replies(channel=CHANNEL, ts=thread_ts, limit=999)
            said.update(message["text"] for message in page["messages"] if message.get("bot_id"))
        return said


def _well(stories: list[Story], since: float) -> bool:
    """Whether the latest quick events that can be judged went as they should."""
    quick = [one for one in stories if one.takes == SECONDS["quick"] and one.attempts]
    fresh = [one for one in quick if one.attempts[0]["at"] > since and (one.finished_at or one.troubles)]
    return len(fresh) >= QUIET and not any(one.troubles for one in fresh[-QUIET:])

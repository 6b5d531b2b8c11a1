"""Send steady traffic from the simulator, which delivers and retries as Slack does, and follow every event."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass
from itertools import count
from typing import Any

from surelane_dev.simulator.client import SimulatorClient
from tests.chaos.handlers import SECONDS
from tests.scenario import CHANNEL, System

RATE = 5.0
"""Events per second."""
LATE = 3.0
"""Seconds that an event may take on a healthy system, beyond its handler's duration."""
FLOWING, QUIET = 3, 15
"""Quick events in a row that were taken at once and handled soon: then traffic flows; then a fault is over."""


@dataclass(frozen=True)
class Story:
    """One event, as the sender and history show it."""

    event_id: str
    thread_ts: str
    takes: float
    attempts: list[dict[str, Any]]
    """The sender's attempts, as the simulator lists them."""
    finished_at: float | None = None
    outcome: str | None = None

    @property
    def acknowledged_at(self) -> float | None:
        """The time of the answer 200."""
        return next((_ended(one) for one in self.attempts if one["status"] == 200), None)

    @property
    def troubles(self) -> list[float]:
        """The times at which the system did not take this event, or was late with it."""
        refused = [one["at"] for one in self.attempts if one["status"] != 200]
        return refused + ([self.finished_at] if self.finished_at and self.lateness > LATE else [])

    @property
    def lateness(self) -> float:
        """The seconds until now or its end, less its handler's duration."""
        if self.acknowledged_at is None:
            return 0.0
        return (self.finished_at or time.time()) - self.acknowledged_at - self.takes


def _ended(attempt: dict[str, Any]) -> float:
    return float(attempt["at"] + attempt["ms"] / 1000)


class Traffic:
    """Mentions at a steady rate. Every fifth is slow; the others come three per thread."""

    def __init__(self, simulator: SimulatorClient, system: System) -> None:
        self._simulator = simulator
        self._system = system
        self._sent: dict[str, Story] = {}

    async def flow(self) -> None:
        """Send until cancelled, even after errors."""
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
        """Return the events so far, in the order of sending."""
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

    async def well(self, since: float, within: float, quick: int = QUIET) -> None:
        """Wait until so many quick events in a row, sent after ``since``, were taken at once and handled soon.

        Raises:
            AssertionError: that did not happen in time.
        """
        deadline = time.monotonic() + within
        while not _well(stories := await self._seen(), since, quick):
            late = [story for story in stories if story.troubles][-5:]
            assert time.monotonic() < deadline, f"not well within {within} s; last troubles: {late}"
            await asyncio.sleep(0.5)

    async def _seen(self) -> list[Story]:
        try:
            return await self.stories()
        except AssertionError:  # the database is away and cannot answer
            return []

    async def settled(self, within: float) -> list[Story]:
        """Wait until the sender has finished every event, and all acknowledged ones are in history."""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            stories = await self.stories()
            if all(story.acknowledged_at and story.finished_at for story in stories):
                return stories
            await asyncio.sleep(0.5)
        return await self.stories()

    async def replies(self, stories: list[Story]) -> Counter[str]:
        """Count the bot's replies in the threads."""
        said: Counter[str] = Counter()
        for thread_ts in sorted({story.thread_ts for story in stories}):
            page = await self._system.web.conversations_replies(channel=CHANNEL, ts=thread_ts, limit=999)
            said.update(message["text"] for message in page["messages"] if message.get("bot_id"))
        return said


def _well(stories: list[Story], since: float, quick: int) -> bool:
    """Return whether the latest quick events were taken at once and handled soon."""
    sent = [one for one in stories if one.takes == SECONDS["quick"] and one.attempts]
    fresh = [one for one in sent if one.attempts[0]["at"] > since and (one.finished_at or one.troubles)]
    return len(fresh) >= quick and not any(one.troubles for one in fresh[-quick:])

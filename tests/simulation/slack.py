"""Slack in a simulation: what it needs for questions. Its answers get lost as the database's do, and people click."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from surelane_dev.testing.fleets.virtual import EPOCH
from surelane_dev.testing.fleets.wire import Host, Net
from tests.simulation.witness import CHOICES, Witness

PATIENCE = 30.0
"""Seconds for which a person waits before another click, after the first ones. Each wait is longer."""


@dataclass
class Slack:
    """The messages of a channel, and the people who answer the questions among them."""

    net: Net
    witness: Witness
    click: Callable[[str, dict[str, Any]], Awaitable[None]]
    """Posts a click to ingest, under a key."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    people: set[asyncio.Task[None]] = field(default_factory=set)

    def take(self, host: Host, method: str, given: dict[str, Any]) -> dict[str, Any]:
        """Do what a call asks for, and return the answer."""
        if method != "chat.postMessage":
            return {"ok": True, "messages": self.messages if method.startswith("conversations.") else []}
        loop, key = self.net.database.loop, given["metadata"]["event_payload"]["event_id"]
        self.messages.append({**given, "ts": f"{EPOCH + loop.now:.3f}{len(self.messages):03}"})
        self.witness.asks(host, key)
        self.people.add(loop.create_task(self._answer(key, self.messages[-1]), context=Context()))
        return {"ok": True, "ts": self.messages[-1]["ts"]}

    async def _answer(self, key: str, message: dict[str, Any]) -> None:
        """Click as a person does: soon, at times once more, and again after a while if nothing comes of it."""
        for nth in count():
            await asyncio.sleep(self.net.random.uniform(0, 20) if nth < 2 else PATIENCE * nth)
            if nth != 1 or self.net.random.random() < 0.5:
                if not await self.net.database.see("select from agent.event where item_key = $1", key):
                    return
                await self.click(f"click-{nth}-{message['ts']}", click_on(message, nth % len(CHOICES)))


def click_on(message: dict[str, Any], number: int) -> dict[str, Any]:
    """Return what Slack posts for a click on a button."""
    block = next(block for block in message["blocks"] if block["type"] == "actions")
    return {
        "type": "block_actions",
        "team": {"id": "T1"},
        "user": {"id": "U1"},
        "channel": {"id": message["channel"]},
        "message": {"ts": message["ts"], "thread_ts": message.get("thread_ts")},
        "actions": [{"block_id": block["block_id"], **block["elements"][number]}],
    }

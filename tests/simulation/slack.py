"""Slack in a simulation: what it needs for questions. Its answers get lost as the database's do, and people click.

By seed it does what Slack does beyond its reference: it answers with an error although it has posted, and somebody
deletes the message that began a thread, so Slack posts later replies to the channel.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from surelane_dev.testing.fleets.virtual import EPOCH
from surelane_dev.testing.fleets.wire import Host, Net
from tests.simulation.mentions import Mentions, key_of
from tests.simulation.plan import GROUPS, TROUBLE, thread_of
from tests.simulation.witness import CHOICES, Witness

PATIENCE = 30.0
"""Seconds for which a person waits before another click, after the first ones. Each wait is longer."""
PERHAPS = "internal_error", "fatal_error"
"""Slack's errors after which it may have done what was asked for. Here it has."""


@dataclass
class Slack:
    """The messages of a channel, and the people who answer the questions among them."""

    net: Net
    witness: Witness
    click: Callable[[str, dict[str, Any]], Awaitable[None]]
    """Posts a click or an event to ingest, under a key."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    people: set[asyncio.Task[None]] = field(default_factory=set)
    unanswered: set[str] = field(default_factory=set)
    """The events whose questions Slack posted beside their thread, which is gone."""
    gone: str | None = None
    """The thread that is gone."""

    def __post_init__(self) -> None:
        self._posts = 0
        self.mentions = Mentions(self.witness, self.click)
        self._random = Random(f"slack {self.witness.seed}")
        self._often = self._random.choice((0.0, 0.05, 0.2))
        doomed = thread_of(self._random.choice(GROUPS))
        if self._random.random() < 0.5:
            at = self._random.uniform(0, TROUBLE)
            self.net.database.loop.call_later(at, self._delete, doomed, context=Context())

    def take(self, host: Host, method: str, given: dict[str, Any]) -> dict[str, Any]:
        """Do what a call asks for, and return the answer."""
        if method.startswith("conversations."):
            if method == "conversations.replies" and given["ts"] == self.gone:
                return {"ok": False, "error": "thread_not_found"}
            return {"ok": True, "messages": self.messages}
        answer: dict[str, Any] = {"ok": True}
        if method == "chat.delete":
            self.messages = [each for each in self.messages if each["ts"] != given["ts"]]
        elif method == "chat.postMessage":
            message = self._post(host, given)
            answer |= {"ts": message["ts"], "message": message}
        if self._random.random() < self._often:
            self.net.log(f"{host.name}: Slack has done {method}, and answers with an error")
            return {"ok": False, "error": self._random.choice(PERHAPS)}
        return answer

    def check(self) -> str | None:
        """Return the key of an event whose question was left beside its thread, if there is one."""
        left = (key_of(each) for each in self.messages if "beside" in each)
        return next((key for key in left if not self.witness.forgot), None)

    def _post(self, host: Host, given: dict[str, Any]) -> dict[str, Any]:
        loop, key = self.net.database.loop, key_of(given)
        self._posts += 1
        message = {**given, "ts": f"{EPOCH + loop.now:.3f}{self._posts:03}"}
        self.messages.append(message)
        if message.get("thread_ts") and message["thread_ts"] == self.gone:
            self.unanswered.add(key)
            message["beside"] = message.pop("thread_ts")
            return message
        if self.mentions.hears(host, message):
            return message
        self.witness.asks(host, key)
        self.people.add(loop.create_task(self._answer(key, message), context=Context()))
        return message

    def _delete(self, thread: str) -> None:
        """Delete the message that began a thread. If it has replies, Slack keeps the thread."""
        if not any(each.get("thread_ts") == thread for each in self.messages):
            self.net.log(f"the message that began the thread {thread} is deleted")
            self.gone = thread

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

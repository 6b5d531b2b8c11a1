"""Slack in a simulation: what it needs for questions. Its answers get lost as the database's do, and people click."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from tests.simulation.virtual import EPOCH
from tests.simulation.wire import Host, Net
from tests.simulation.witness import CHOICES, Witness

WITHIN = 10.0
"""Seconds in which Slack answers, or never does."""
PATIENCE = 30.0
"""Seconds for which a person waits before another click, after the first ones. Each wait is longer."""
LOST = 4
"""How many times as often as those of the database answers of Slack get lost: there are few."""


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
                await self.click(f"click-{nth}-{message['ts']}", _click(message, nth % len(CHOICES)))


class Client(AsyncWebClient):
    """Slack's Web API as a worker reaches it."""

    def __init__(self, slack: Slack, host: Host) -> None:
        super().__init__("xoxb-simulated")
        self._slack, self._host = slack, host

    async def api_call(self, api_method: str, **given: Any) -> AsyncSlackResponse:
        net, loop = self._slack.net, self._slack.net.database.loop
        until = loop.now + WITHIN
        await asyncio.sleep(net.delay())
        while self._host.cut_off:
            if loop.now > until:
                raise TimeoutError
            await asyncio.sleep(0.5)
        data = self._slack.take(
            self._host, api_method, {**(given.get("params") or {}), **(given.get("json") or {})}
        )
        if net.random.random() < LOST * net.faults.lost_answer:
            net.log(f"{self._host.name}: Slack's answer is lost")
            raise TimeoutError
        await asyncio.sleep(net.delay())
        return AsyncSlackResponse(
            client=self, http_verb="POST", api_url="", req_args={}, data=data, headers={}, status_code=200
        )


def _click(message: dict[str, Any], number: int) -> dict[str, Any]:
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

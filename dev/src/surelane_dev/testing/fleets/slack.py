"""Slack in virtual time: its messages in memory, and the client with which a worker reaches them."""

import asyncio
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Protocol

from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from surelane_dev.testing.fleets.virtual import EPOCH
from surelane_dev.testing.fleets.wire import Host, Net
from surelane_service.outbound import Reply
from surelane_worker.slack.client import SlackClients
from surelane_worker.slack.limiter import check_after_wait

WITHIN = 10.0
"""Seconds in which Slack answers, or never does."""
LOST = 4
"""How many times as often as those of the database answers of Slack get lost: there are few."""


BOT, RUNS, START = "UBOT", "in_progress", "chat.startStream"
MOST_STREAMED = 10_800
"""Bytes of a streamed message, as apps have measured."""
OF_GONE = {
    "chat.getPermalink": "message_not_found",
    "chat.startStream": "invalid_thread_ts",
    "conversations.replies": "thread_not_found",
}
"""How Slack refuses what is about a message that was deleted."""


class Answering(Protocol):
    """A Slack."""

    def take(self, host: Host, method: str, given: dict[str, Any]) -> dict[str, Any]:
        """Do what a call asks for, and return the answer."""


@dataclass(eq=False)
class MessagesInMemory:
    """The messages of the bot in all channels. Further methods do nothing, and succeed."""

    net: Net
    messages: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """All calls: each method with its arguments."""
    refused: dict[str, str] = field(default_factory=dict)
    """The error with which each method is refused, if it is."""
    failing: dict[str, str] = field(default_factory=dict)
    """The error with which the next call of each method is answered, although it is done."""
    gone: set[str] = field(default_factory=set)
    """The timestamps of people's messages that were deleted: replies to them go to the channel."""

    def take(self, _: Host, method: str, given: dict[str, Any]) -> dict[str, Any]:
        """Do what a call asks for, and return the answer."""
        self.calls.append((method, given))
        if method in self.refused:
            return {"ok": False, "error": self.refused[method]}
        answer = self._done(method, given)
        return {"ok": False, "error": self.failing.pop(method)} if method in self.failing else answer

    def _done(self, method: str, given: dict[str, Any]) -> dict[str, Any]:
        if (given.get("thread_ts") or given.get("message_ts") or given.get("ts")) in self.gone:
            if error := OF_GONE.get(method):
                return {"ok": False, "error": error}
            given = {name: value for name, value in given.items() if name != "thread_ts"}
        channel = [each for each in self.messages if each.get("channel") == given.get("channel")]
        mine = [each for each in channel if each["ts"] == given.get("ts")]
        match method:
            case "chat.postMessage" | "response_url":
                self.messages.append({**given, "ts": self.next_ts()})
                return {"ok": True, "ts": self.messages[-1]["ts"], "message": self.messages[-1]}
            case "auth.test":
                return {"ok": True, "user_id": BOT}
            case "chat.startStream" | "chat.appendStream" | "chat.stopStream" if mine or method == START:
                return self._begun(given) if method == START else _streamed(mine[0], given, method)
            case "chat.update" if mine and mine[0].get("streaming_state") == RUNS:
                return {"ok": False, "error": "streaming_state_conflict"}
            case "views.open":
                return {"ok": True, "view": {"id": f"V{len(self.calls)}"}}
            case "chat.update" if mine:
                mine[0].update(given)
            case "chat.delete" if mine:
                self.messages.remove(mine[0])
        return {"ok": True, "messages": channel if method.startswith("conversations.") else []}

    def _begun(self, given: dict[str, Any]) -> dict[str, Any]:
        """Begin a streamed message. In a channel, Slack does so for a person only."""
        recipient = given.get("recipient_user_id")
        if not given["channel"].startswith("D"):
            if not recipient:
                return {"ok": False, "error": "missing_recipient_user_id"}
            if not recipient.startswith(("U", "W")):
                return {"ok": False, "error": "user_not_found"}
        place = {name: given.get(name) for name in ("channel", "thread_ts")}
        message = {**place, "ts": self.next_ts(), "user": BOT, "text": "", "streaming_state": RUNS}
        if (answer := _streamed(message, given, START))["ok"]:
            self.messages.append(message)
        return answer

    def next_ts(self) -> str:
        """Return a timestamp for a message now."""
        return f"{EPOCH + self.net.database.loop.now:.3f}{len(self.calls):03}"


def _streamed(message: dict[str, Any], given: dict[str, Any], method: str) -> dict[str, Any]:
    ends = method == "chat.stopStream"
    if message.get("streaming_state") != RUNS:
        return {"ok": False, "error": "message_not_in_streaming_state"}
    text = message["text"] + "".join(each.get("text", "") for each in given.get("chunks") or ())
    if len(text.encode(errors="replace")) > MOST_STREAMED:
        return {"ok": False, "error": "msg_too_long"}
    shown = {name: given.get(name) for name in ("blocks", "metadata")} if ends else {}
    message.update(text=text, streaming_state="completed" if ends else RUNS, **shown)
    return {"ok": True, "ts": message["ts"]}


class Client(AsyncWebClient):
    """Slack's Web API as a worker reaches it. Its answers get lost as the database's do."""

    def __init__(self, slack: Answering, net: Net, host: Host) -> None:
        super().__init__("xoxb-virtual")
        self._slack, self._net, self._host = slack, net, host

    async def api_call(self, api_method: str, **given: Any) -> AsyncSlackResponse:
        if check := check_after_wait.get(None):  # as where a call waits for its turn
            await check()
        data = await self._answer(api_method, {**(given.get("params") or {}), **(given.get("json") or {})})
        response = AsyncSlackResponse(
            client=self, http_verb="POST", api_url="", req_args={}, data=data, headers={}, status_code=200
        )
        response.validate()  # type: ignore[no-untyped-call]
        return response

    async def _answer(self, method: str, given: dict[str, Any]) -> dict[str, Any]:
        net, loop = self._net, self._net.database.loop
        until = loop.now + WITHIN
        arrives = loop.now + net.delay()
        try:
            await asyncio.sleep(arrives - loop.now)
        except asyncio.CancelledError:
            if not (self._host.alive or self._host.cut_off):  # what was sent arrives after a process's death
                loop.call_at(arrives, self._slack.take, self._host, method, given, context=Context())
            raise
        while self._host.cut_off:
            if loop.now > until:
                raise TimeoutError
            await asyncio.sleep(0.5)
        data = self._slack.take(self._host, method, given)
        if net.random.random() < LOST * net.faults.lost_answer:
            net.log(f"{self._host.name}: Slack's answer is lost")
            raise TimeoutError
        await asyncio.sleep(net.delay())
        return data

    async def post(self, url: str, message: dict[str, Any]) -> Reply:
        """Answer through a response URL."""
        given = {name: value for name, value in message.items() if value is not None}
        answer = await self._answer("response_url", {"response_url": url, **given})
        return Reply(200 if answer["ok"] else 404, "identity", 1, b"ok")


def clients(slack: Answering, net: Net, host: Host) -> SlackClients:
    client = Client(slack, net, host)
    return SlackClients(client, client, client)  # type: ignore[arg-type] # it posts to response URLs, too

"""Make attempts at events by hand: each claims the event again, and gets what a handler has as ``ctx.slack``."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from surelane.calls import Connection
from surelane.events import Event
from surelane_dev.simulator.workspace.model import Message
from surelane_service.engine import Engine
from surelane_service.logs import get_logger
from surelane_service.service_settings import load_settings
from surelane_worker.slack.client import SlackClients, slack_clients
from surelane_worker.slack.notes import Notebooks
from surelane_worker.slack.replies import Replies
from surelane_worker.worker_settings import WorkerSettings
from tests.processes import until
from tests.system.slack_stand import Stand, shown, slack_stand

Attempt = tuple[Event, Replies]


@dataclass(frozen=True)
class Attempts:
    """Claims events, and makes for each claim what its handler gets as ``ctx.slack``."""

    slack: Stand
    connection: Connection
    clients: SlackClients

    async def next(self) -> Attempt:
        """Claim the event, again if its last claim was not settled: a new attempt."""
        await self.connection.execute("update agent.event set vt = agent.clock()")
        kinds = await self.connection.fetchval("select array_agg(distinct kind) from agent.event")
        (event,) = await Engine(self.connection).claim_events(
            kinds, 1, worker="w", max_attempts=10, invisible_for=timedelta(minutes=1)
        )
        log = get_logger("test")
        return event, Replies(self.clients, Notebooks(Engine(self.connection), log), log, _stands)

    async def mention(self) -> Attempt:
        """Let a person mention the bot, and claim the event."""
        await self.slack.mention("hello")
        return await self.next()

    async def command(self) -> Attempt:
        """Let a person send a slash command, and claim the event."""
        await self.slack.store(self.slack.command("/x"))
        return await self.next()

    async def click(self) -> Attempt:
        """Let a person press a button of a message of the bot, and claim the event."""
        workspace = self.slack.simulator.workspace
        message = workspace.post(self.slack.room(), workspace.bot.id, "question", by_app=True)
        action = {"type": "button", "action_id": "yes", "block_id": "b", "value": "1"}
        await self.slack.store(self.slack.click(message, action))
        return await self.next()

    def calls(self, *names: str) -> list[str]:
        return self.slack.calls(*names)

    @property
    def said(self) -> list[Message]:
        """The bot's messages in the general channel."""
        return [message for message in self.slack.room().messages.values() if message.by_app]

    @property
    def thread(self) -> list[str]:
        return list(map(shown, self.said))

    @property
    def direct(self) -> list[str]:
        """The texts of the bot's direct messages to Ada."""
        room = self.slack.simulator.workspace.direct_messages(self.slack.user().id)
        return [message.text for message in room.messages.values() if message.by_app]

    def expire(self) -> None:
        """Let Slack's thirty minutes pass for all response URLs."""
        for response in self.slack.simulator.interactions.responses.values():
            response.until = 0


async def _stands() -> None:
    """Find that the claim stands."""


async def streamed(
    attempt: Attempt, *texts: str, interval: float = 3600, fails: bool = False, blocks: Sequence[Any] = ()
) -> None:
    """Stream texts to the end, or until the handler fails after them."""
    event, slack = attempt
    with suppress(RuntimeError):
        async with slack.stream(event, interval=interval) as stream:
            for text in texts:
                await stream.append(text)
            if fails:
                raise RuntimeError
            await stream.stop(blocks=blocks)


async def cut(call: Any, condition: Any) -> None:
    """End an attempt in a call, as a kill does: nothing more is noted."""
    calling = asyncio.create_task(call)
    await until(condition, what="the call")
    calling.cancel()
    await asyncio.wait([calling])


@asynccontextmanager
async def slack_attempts(connection: Connection) -> AsyncIterator[Attempts]:
    """Serve a simulated Slack, with clients for it."""
    async with slack_stand(connection) as stand:
        settings = load_settings(WorkerSettings, database_url="postgresql://x@/x", slack_api_url=stand.api)
        async with slack_clients(settings, traced=False) as clients:
            yield Attempts(stand, connection, clients)

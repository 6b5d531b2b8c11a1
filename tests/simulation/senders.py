"""What reaches the queue in a simulation: by ingest, as Slack posts, and by programs."""

import asyncio
import json
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import asyncpg

from surelane.errors import SurelaneError
from surelane.events import Inserted
from surelane.jobs import Job
from surelane.queue import Queue
from surelane_dev.testing.fleets.virtual import EPOCH
from surelane_dev.testing.fleets.wire import Host, Net, Wire
from surelane_encryption.data_keys import DataKeys
from surelane_encryption.keys import Keyring
from surelane_encryption.sealing import Sealing
from surelane_ingest.writer import Connections, NotStored, Writer
from tests.simulation.database import Database
from tests.simulation.plan import Post, thread_key
from tests.simulation.witness import BrokenError

KEY = urlsafe_b64encode(b"k" * 32).decode()


class Senders:
    """Ingest, and a program that must not lose its calls."""

    def __init__(self, net: Net, log: Callable[[str], None], *, encrypted: bool) -> None:
        self.loop, self.database = net.database.loop, cast("Database", net.database)
        self._say = log
        self.net, net.log = net, self.log
        self.acknowledged: set[str] = set()
        self.sent: set[str] = set()
        """The events that were sent what they wait for."""
        self.sends = Counter[str]()
        """How often each job was sent: again where the answer was lost, and anew where it has ended by then."""
        self.door, self.program = Host("ingest"), Host("program")
        self.sealing = Sealing(DataKeys(cast("Any", self.wire()), Keyring([KEY])), on=encrypted)

    def log(self, text: str) -> None:
        """Say what happens, and when."""
        self._say(f"{self.loop.now:8.3f} {text}")

    def server_now(self) -> float:
        """Return the time by the server's clock, as seconds since the simulation began by its own."""
        return self.loop.now + self.database.jump

    @asynccontextmanager
    async def ingest(self) -> AsyncIterator[Callable[[str, str], Any]]:
        pool = Wire(self.net, self.door, "surelane_ingest", within=2, kept=True)
        connections = Connections(cast("Any", pool), timedelta(seconds=2))
        async with Writer(connections, buffer=100) as writer:
            yield writer.store

    async def _clicked(self, store: Callable[[str, str], Any], key: str, click: dict[str, Any]) -> None:
        await self._deliver(store, key, json.dumps(click))

    async def _deliver(self, store: Callable[[str, str], Any], key: str, text: str) -> None:
        """Post an event as Slack does: again and again until it is acknowledged."""
        for _ in range(200):
            answer = await self._stored(store, text, key)
            if isinstance(answer, Inserted):
                self.acknowledged.add(key)
                return
            if answer is NotStored.UNSTORABLE:
                raise BrokenError("the server's state is never an event's fault", key)
            await asyncio.sleep(1)
        raise BrokenError("everything is stored", key)

    async def _stored(self, store: Callable[[str, str], Any], text: str, key: str) -> Any:
        try:
            sealed, _ = await self.sealing.seal_event(text, key) if self.sealing.on else (text, key)
        except SurelaneError:
            return NotStored.NO_KEY
        return await store(sealed, key)

    async def schedule(self, key: str, group: str | None, seconds: float) -> None:
        """Enqueue a job of a group for later."""
        group_key = None if group is None else thread_key(group)
        job = Job("later", run_at=self.at(seconds), group_key=group_key, item_key=key)

        def send(queue: Queue) -> Awaitable[list[Inserted]]:
            self.sends[key] += 1
            return queue.enqueue_many([job])

        await self.again(send)
        self.acknowledged.add(key)

    def at(self, seconds: float) -> datetime:
        return datetime.fromtimestamp(EPOCH + self.server_now() + seconds, UTC)

    async def _replace_jobs(self, post: Post) -> None:
        """Enqueue jobs as programs do, and replace some by others while they wait."""
        at = self.at(1 + 9 * post.size)
        for nth, lanes in enumerate((("left", "right"), ("right",), ("right", "left"), ("left",))):
            for lane in lanes:
                job = Job("keyed", {"lane": lane}, f"{post.key}-{nth}", at, limit_key=lane)
                (stored,) = await self.again(partial(_replace, job))
                self.acknowledged.add(str(stored.id))

    def signal(self, key: str) -> asyncio.Task[None]:
        """Send an event what it waits for."""
        self.sent.discard(key)

        async def send(queue: Queue) -> str | None:
            if key not in self.acknowledged:
                return "lost"
            ended = await self.database.see("select from agent.event_hist where item_key = $1", key)
            return "taken" if ended else await queue.signal(key, "go", key)

        async def sent() -> None:
            await self.again(send)
            self.sent.add(key)
            self.log(f"{key} was sent what it waits for")

        return self.loop.create_task(sent())

    def wire(self) -> Wire:
        """Return a connection of the program."""
        return Wire(self.net, self.program, "surelane_worker", within=2, kept=True)

    async def again(self, call: Callable[[Queue], Awaitable[Any]]) -> Any:
        """Call as a program does that must not lose it: again and again until there is an answer."""
        for _ in range(200):
            with suppress(SurelaneError, asyncpg.LockNotAvailableError, TimeoutError):
                if (answer := await call(Queue(self.wire(), encryption=self.sealing))) is not None:
                    return answer
            await asyncio.sleep(1)
        raise BrokenError("everything is stored", "a program's call")


async def _replace(job: Job, queue: Queue) -> list[Inserted]:
    return await queue.enqueue_many([job], on_duplicate="replace")

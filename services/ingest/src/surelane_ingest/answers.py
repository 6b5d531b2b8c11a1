"""Wait for the answers to commands and interactions, to return them in the HTTP response.

The event is stored together with a row that says that its request waits, and on which channel. A worker answers that
row; a notification on the channel brings the answer. This process polls its rows, too, while requests wait: the
notification may be missed. A request ends its row before it gives up, so the worker knows whether the answer counted.

All requests share one connection. It listens while requests wait and for a minute after, because a connection that
listens is woken for the notifications of all events.
"""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from surelane.codec import ANSWER, SEALED, Codec, Location, SealedError
from surelane.errors import DatabaseRefused, DatabaseUnavailable, SurelaneError, described
from surelane_service.intake import Intake
from surelane_service.lifecycle import sleep_unless
from surelane_service.logs import get_logger
from surelane_service.pool import Listener

LEAST = 0.1
"""Seconds below which there is no use in waiting."""
POLL = 0.25
"""Seconds between two polls, beside the notifications."""
SHORTEST_POLL = 0.02
"""Seconds between two polls of requests that end."""
LISTEN = 60.0
"""Seconds without a request after which the connection listens no more."""
PAUSE = 0.1
"""Seconds between two tries of a database that is away."""

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long requests wait: less than the three seconds that Slack waits.

    Attributes:
        wait: seconds from a request's arrival within which it is answered by a handler, or else by nothing.
        grace: seconds after that for the database to end a request. Then it is answered all the same.
    """

    wait: float = 2.5
    grace: float = 0.3


PATIENCE = Patience()


class Request:
    """One request that waits."""

    def __init__(self, answers: "AnswerWaits", until: float) -> None:
        self._answers = answers
        self.until = until
        """When it gives up, by the event loop's clock."""
        self.channel = answers.channel
        """Where its answer is announced."""
        self.event: int | None = None
        """The event that it waits for, once it is stored and can be answered."""
        self.answered: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    @property
    def left(self) -> timedelta | None:
        """How long it waits from now on; ``None`` if there is no use in it."""
        seconds = self.until - asyncio.get_running_loop().time()
        return timedelta(seconds=seconds) if seconds > LEAST else None

    def stored(self, event: int) -> None:
        self.event = event
        self._answers.wait(self, event)

    async def answer(self) -> str | None:
        """Return the handler's answer, as JSON text; ``None``: there is none."""
        if self.event is None:
            return None
        try:
            async with asyncio.timeout_at(self.until + self._answers.patience.grace):
                return await self._answers.opened(await self.answered, Location(self.event, ANSWER))
        except TimeoutError:
            return None


class AnswerWaits:
    """Gets answers from the database while requests wait. Use it as a context manager."""

    def __init__(self, listener: Listener, codec: Codec, *, most: int, patience: Patience = PATIENCE) -> None:
        """Nothing else uses ``listener``. At most ``most`` requests wait at once; others are answered by nothing."""
        self.channel = f"agent_request_{secrets.token_hex(8)}"
        self.patience = patience
        self._listener = listener
        self._codec = codec
        self._most = most
        self._requests: set[Request] = set()
        self._waiting: dict[int, list[Request]] = {}
        self._early: dict[int, str | None] = {}
        """Answers that arrived before our insert returned; ``None``: to be fetched."""
        self._answered: set[int] = set()
        """Events whose requests have their answers, and whose rows remain."""
        self._news = asyncio.Event()
        self._listens = False
        self._working = True
        listener.on_lost = self._news.set
        listener.hear(self.channel, self._notice)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._listener.close()

    @contextmanager
    def request(self, arrived: float) -> Iterator[Request | None]:
        """Let a request wait, which arrived then by the event loop's clock; ``None`` if too many wait."""
        if len(self._requests) >= self._most:
            yield None
            return
        request = Request(self, arrived + self.patience.wait)
        self._requests.add(request)
        if not self._listens:
            self._news.set()
        try:
            yield request
        finally:
            self._requests.discard(request)
            if request.event is not None and (others := self._waiting.get(request.event)) is not None:
                others.remove(request)
                if not others:
                    del self._waiting[request.event]
            if not self._requests:
                self._early.clear()

    def wait(self, request: Request, event: int) -> None:
        if request not in self._requests:
            return
        self._waiting.setdefault(event, []).append(request)
        if event in self._early:
            self._heard(event, self._early.pop(event))

    async def opened(self, answer: str | None, at: Location) -> str | None:
        """Decrypt an answer; ``None`` where that is impossible."""
        if answer is None or SEALED not in answer:
            return answer
        try:
            return await self._codec.open(answer, at)
        except (SurelaneError, SealedError) as error:
            _logger.warning("an answer cannot be decrypted", error=type(error).__name__)
            return None

    def _notice(self, notice: str) -> None:
        """Take a notification: an event's id, and its answer if that is small."""
        identity, _, answer = notice.partition(" ")
        self._heard(int(identity), answer or None)

    def _heard(self, event: int, answer: str | None) -> None:
        if event not in self._waiting:
            if self._requests:
                self._early[event] = answer
        elif answer is None:
            self._news.set()
        else:
            self._answered.add(event)
            self._end(event, answer)

    def _end(self, event: int, answer: str | None) -> None:
        for request in self._waiting.get(event, ()):
            if not request.answered.done():
                request.answered.set_result(answer)

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            try:
                await self._take_all()
            except (DatabaseUnavailable, DatabaseRefused) as error:
                self._report(error)
            except Exception:
                _logger.exception("waiting for answers crashed; it starts again")
            else:
                continue
            await asyncio.sleep(PAUSE)
            if self._requests:
                self._news.set()

    async def _take_all(self) -> None:
        """Listen and poll until no request has waited for a while."""
        loop = asyncio.get_running_loop()
        used = loop.time()
        self._listens = True
        try:
            while self._requests or self._answered or loop.time() < used + LISTEN:
                await self._listener.listen(wanted=True, channel=self.channel)
                await self._take()
                pause = POLL  # without a statement; a request may come meanwhile
                if self._requests or self._answered:
                    used = loop.time()
                    ends = min(self._ends().values(), default=used + POLL)
                    pause = max(min(POLL, ends - used), SHORTEST_POLL)
                await sleep_unless(self._news, pause)
                self._news.clear()
        finally:
            self._listens = False
        await self._listener.close()

    def _ends(self) -> dict[int, float]:
        """Return the events that are waited for, and when each request gives up."""
        return {
            request.event: request.until
            for request in self._requests
            if request.event is not None and not request.answered.done()
        }

    async def _take(self) -> None:
        """Fetch what was answered, and end what has waited for long enough."""
        now = asyncio.get_running_loop().time()
        waiting, answered = self._ends(), self._answered
        self._answered = set()
        ending = {event for event, until in waiting.items() if until <= now} | answered
        if not waiting and not ending:
            return
        async with self._listener.connection() as connection:
            taken = await Intake(connection).take_answers(self.channel, list(waiting), list(ending))
        self._report(None)
        for event, answer in taken.items():
            self._end(event, answer)

    def _report(self, error: BaseException | None) -> None:
        """Log once that answers cannot be fetched, and once that they can."""
        if error is None and not self._working:
            _logger.info("answers arrive again")
        elif error is not None and self._working:
            _logger.warning("answers do not arrive; requests are answered by nothing", **described(error))
        self._working = error is None

"""Keep Slack's rate limits before Slack refuses a call, together with all other workers.

A worker leases calls from PostgreSQL in batches (``agent.lease_slack_calls``): for the calls that wait, and a few spare
ones. One statement serves all limits that a worker wants at that moment. The next one is sent after its answer. No call
waits long for the database: if that is slow or away, each worker keeps to its own share of the limits.
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from urllib.parse import parse_qsl

from aiohttp import ClientHandlerType, ClientMiddlewareType, ClientRequest, ClientResponse
from aiohttp.hdrs import AUTHORIZATION, CONTENT_TYPE
from aiohttp.payload import Payload
from yarl import URL

from surelane_service.lifecycle import apart, sleep_unless
from surelane_service.logs import get_logger
from surelane_service.outbound import seconds_asked
from surelane_worker.observing.metrics import Metrics
from surelane_worker.slack.limits import (
    CHANNEL,
    LONGEST_WAIT,
    Caller,
    Leased,
    LeaseWanted,
    RateLimit,
    Rule,
    SlackBusyError,
    SlackLimits,
    rules_of,
)

PATIENCE = 2.0
"""Seconds that a call waits for the database. It then takes its turn by the worker's own share."""
AWAY = 2.0
"""Seconds without a statement after the database did not answer."""
PAUSE = 0.02
"""About how many seconds until the worker asks again for a limit that another transaction has locked."""
TRIES = 10
MOST_AT_ONCE = 50
"""Most limits in one statement."""
MOST_KEPT = 1000
"""Most limits that a worker remembers. Above that number it forgets limits that it has not used for a window."""
WORKERS = 10
"""The assumed number of workers that share the limits, until the database has told the real one."""

check_after_wait: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("check_after_wait")
"""Awaited when a call's turn has come. If the claim was lost meanwhile, it cancels the handler and its call."""

_log = get_logger(__name__)


@dataclass(eq=False)
class Limiter:
    """Admits calls of Slack's Web API as its limits allow."""

    database: SlackLimits
    metrics: Metrics
    rules: Callable[[str], Sequence[Rule]] = rules_of

    def __post_init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._limits: dict[str, RateLimit] = {}
        self._wanted: dict[str, RateLimit] = {}
        self._workers = WORKERS
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._question: asyncio.Task[list[Leased | None]] | None = None
        self._away_until = 0.0
        """When to ask a database again that did not answer; 0: it did."""

    async def close(self) -> None:
        """Stop asking the database."""
        tasks = [task for task in (self._keeper, self._question) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def admit(self, workspace: str, method: str, channel: str | None = None) -> None:
        """Wait until a call may be made, two minutes at most; then raise :class:`SlackBusyError`.

        ``workspace`` names an app in a workspace, such as a digest of its token.
        """
        began = self._clock()
        limits = self._limits_of(workspace, method, channel, began)
        callers: dict[RateLimit, Caller] = {}
        try:
            async with asyncio.timeout(LONGEST_WAIT) as bound:
                now = await self._turns_come(limits, callers)
        except BaseException as error:
            for limit, caller in callers.items():
                limit.leave(caller, self._clock())
            if isinstance(error, TimeoutError) and bound.expired():
                raise SlackBusyError(LONGEST_WAIT) from None
            raise
        for limit, caller in callers.items():
            limit.use(caller.result(), now)
        self.metrics.slack_admitted(method, now - began)

    async def _turns_come(self, limits: Sequence[RateLimit], callers: dict[RateLimit, Caller]) -> float:
        """Get a turn of each limit, all at once, and return at the time when all have come."""
        while True:
            now = self._clock()
            for limit in limits:
                if limit not in callers or limit.is_void(callers[limit], now):
                    callers[limit] = limit.call(now)
                    if not callers[limit].done():
                        self._want(limit)
            if waiting := [caller for caller in callers.values() if not caller.done()]:
                await waiting[0]
                continue
            last = max(caller.result().at for caller in callers.values())
            if last <= now:
                return now
            for limit in limits:
                if callers[limit].result().until < last:  # it would lapse before: another caller may use it
                    limit.leave(callers.pop(limit), now)
            await asyncio.sleep(last - now)

    def refused(self, workspace: str, method: str, channel: str | None, retry_after: float) -> None:
        """Tell all workers that Slack refused a call, and for how many seconds it will refuse others."""
        self.metrics.slack_refused(method)
        now = self._clock()
        limits = self._limits_of(workspace, method, channel, now)
        for limit in limits:
            # Slack does not say which limit it means. A channel's own never takes long.
            if limit.rule.per_channel or len(limits) == 1 or retry_after > CHANNEL.seconds:
                limit.refusals += 1
                limit.turns.clear()
                limit.last_at = 0.0
                limit.delay_until = limit.not_before = max(limit.not_before, now + retry_after)
                self._want(limit)

    def _limits_of(self, workspace: str, method: str, channel: str | None, now: float) -> list[RateLimit]:
        found = []
        for rule in self.rules(method):
            name = f"{workspace[:80]}/{method[:120]}"
            if rule.per_channel:
                name += f"/{(channel or '')[:80]}"
            if name not in self._limits:
                self._forget(now)
                self._limits[name] = RateLimit(name, rule)
            found.append(self._limits[name])
        return found

    def _forget(self, now: float) -> None:
        """Forget the limits of channels without recent calls, if there are too many limits."""
        if len(self._limits) >= MOST_KEPT:
            self._limits = {
                name: limit
                for name, limit in self._limits.items()
                if limit.is_wanted or limit.last_at > now or any(end > now for end in limit.counted)
            }

    def _want(self, limit: RateLimit) -> None:
        self._wanted[limit.name] = limit
        self._changed.set()
        if self._keeper is None or self._keeper.done():
            self._keeper = apart(self._keep())

    async def _keep(self) -> None:
        """Ask the database for turns, as long as there are callers."""
        while self._wanted:
            self._changed.clear()
            due = [limit for limit in self._wanted.values() if limit.ask_at <= self._clock()][:MOST_AT_ONCE]
            if due:
                await self._serve(due)
            else:
                soonest = min(limit.ask_at for limit in self._wanted.values())
                await sleep_unless(self._changed, soonest - self._clock())
            self._wanted = {name: limit for name, limit in self._wanted.items() if limit.is_wanted}

    async def _serve(self, limits: Sequence[RateLimit]) -> None:
        """Give the callers of some limits their turns: from the database, or from the worker's own share."""
        sent = self._clock()
        asked = [limit.wanted(sent) for limit in limits]
        answers = await self._answers(limits, asked)
        now = self._clock()
        for limit, leased, wanted in zip(limits, answers or [None] * len(limits), asked, strict=True):
            if leased is not None:
                self._workers = max(1, leased.workers)
                limit.lease(leased, wanted, sent, now)
            elif answers is None or limit.tries >= TRIES:
                limit.tries = 0
                limit.share(self._workers, now, self._away_until or now + AWAY)
            else:
                limit.tries += 1
                limit.retry_at = now + PAUSE * random.uniform(0.5, 1.5)  # noqa: S311 - no secret

    async def _answers(
        self, limits: Sequence[RateLimit], asked: Sequence[LeaseWanted]
    ) -> list[Leased | None] | None:
        """Ask the database, and return its answers; ``None`` if it does not answer within two seconds."""
        if self._question is not None and not self._question.done():
            # Turns are shared until then. With a time that is past, the keeper would try again without a pause.
            self._away_until = max(self._away_until, self._clock() + AWAY)
        if self._clock() < self._away_until:
            return None
        self._question = apart(self._ask(limits, asked))
        # Do not cancel a slow statement: the cancellation would be slow as well.
        await asyncio.wait([self._question], timeout=PATIENCE)
        error = self._question.exception() if self._question.done() else TimeoutError()
        if error is None:
            self._away_until = 0.0
            return self._question.result()
        if not self._away_until:
            _log.warning(
                "could not lease Slack's calls from the database; this worker keeps to its share of the limits",
                error=type(error).__name__,
                share=f"1/{self._workers}",
            )
        self._away_until = self._clock() + AWAY
        return None

    async def _ask(self, limits: Sequence[RateLimit], asked: Sequence[LeaseWanted]) -> list[Leased | None]:
        began = self._clock()
        for limit, wanted in zip(limits, asked, strict=True):
            if limit.delay_until is not None:
                left = limit.delay_until - self._clock()
                if left <= 0 or await self.database.delay_slack_calls(*wanted[:3], left):
                    limit.delay_until = None
        leased = await self.database.lease_slack_calls(asked, LONGEST_WAIT)
        self.metrics.operation.add("lease", self._clock() - began)
        return leased


def admitting(limiter: Limiter, api: URL) -> ClientMiddlewareType:
    """Return a middleware that makes an HTTP session keep Slack's limits, in all its clients, pages and retries.

    Slack's limits are per app and workspace. A bot's token stands for both, so a digest of it names the workspace.
    Requests elsewhere than to ``api``, the Web API's address, are sent at once.
    """

    async def admit(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        if request.url.origin() != api.origin() or not request.url.path.startswith(api.path):
            return await send(request)
        method = request.url.path.removeprefix(api.path)
        workspace = sha256(request.headers.get(AUTHORIZATION, "").encode()).hexdigest()[:16]
        in_channel = any(rule.per_channel for rule in limiter.rules(method))
        channel = await _channel(request) if in_channel else None
        await limiter.admit(workspace, method, channel)
        if check := check_after_wait.get(None):
            await check()
        response = await send(request)
        if response.status == HTTPStatus.TOO_MANY_REQUESTS:
            limiter.refused(workspace, method, channel, seconds_asked(response.headers))
        return response

    return admit


async def _channel(request: ClientRequest) -> str | None:
    """Return the channel that a call names in its URL or its body."""
    given: Mapping[str, object] = request.url.query
    body = await request.body.as_bytes() if isinstance(request.body, Payload) else request.body
    match request.headers.get(CONTENT_TYPE, "").partition(";")[0]:
        case "application/json":
            with suppress(ValueError):
                parsed = json.loads(body)
                given = {**given, **parsed} if isinstance(parsed, dict) else given
        case "application/x-www-form-urlencoded":
            given = {**given, **dict(parse_qsl(body.decode(errors="replace")))}
    channel = given.get("channel") or given.get("channel_id")
    return channel if isinstance(channel, str) else None

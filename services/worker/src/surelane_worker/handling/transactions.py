"""Run a step in a transaction of the team's own: what it writes there and its stored result are committed together.

The worker first stores that the step may come, with a token. In the team's transaction, which may have the rights of
another role, the token lets one statement store the result, under the fence of the claim.
"""

import asyncio
import inspect
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

from surelane.drivers import Driver, async_driver, sync_driver
from surelane.errors import UnsupportedConnection
from surelane_worker.handling.flow import Key
from surelane_worker.handling.shapes import ResultForm, StepCall, StepMismatchError, fingerprint
from surelane_worker.handling.steps import NO_FAILURES, Steps
from surelane_worker.slack.notes import ClaimLostError
from surelane_worker.slack.replies import SCOPE

_BEGUN = "select pg_current_xact_id()::text as xact"
_FINISH = (
    "select agent.finish_step($1::int8, $2::int4, $3::text, $4::int4, $5::text, $6::text, $7::text, $8::text::json"
    ", $9::float8) as answer"
)


class Transaction:
    """A function that becomes a step in a transaction on a team's connection."""

    def __init__(self, steps: Steps, database: object, function: Callable[..., Any]) -> None:
        self._steps = steps
        self._function = function
        try:
            self.driver, self._choose, self._blocks = async_driver(database), async_driver, False
        except UnsupportedConnection:
            self.driver, self._choose, self._blocks = sync_driver(database), sync_driver, True

    async def run(self, name: str, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Run the step, or return its stored result; see :meth:`Context.transaction`."""

        @wraps(self._function)
        async def once(*arguments: Any, **named: Any) -> Any:
            given, _, nth = SCOPE.get("").rpartition(":")
            key, began, fence = Key(given, int(nth)), time.perf_counter(), self._steps.fence
            token = await self._offer(key)
            hashed, results = fingerprint(arguments, named), list[object]()

            async def stored(result: object, xact: str) -> tuple[Any, ...]:
                text = ResultForm.of(self._function).text(key, result)
                event = fence.event
                sealed = await fence.engine.sealed_step(event.id, key.name, key.nth, hashed, text)
                results.append(result)
                took = time.perf_counter() - began
                return event.id, event.claim, key.name, key.nth, token, xact, *sealed, took

            try:
                if not self._blocks:
                    return await self._awaited(stored, arguments, named)
                loop = asyncio.get_running_loop()
                return await self._steps.threads.run(lambda: self._blocking(loop, stored, arguments, named))
            except NO_FAILURES:
                raise
            except Exception:
                if results:  # it may be committed: another token keeps it from a later commit
                    await self._offer(key)
                    steps = await fence.patiently(fence.engine.read_steps, fence.event.id)
                    if any(Key(step.name, step.nth) == key and step.done for step in steps):
                        return results[0]
                raise

        return await self._steps.run(name, StepCall(once, arguments, named))

    async def _offer(self, key: Key) -> str:
        """Store that the step may come, with a new token. Return the token."""
        token, fence = secrets.token_hex(16), self._steps.fence
        await fence.send(fence.engine.offer_step, key.name, key.nth, token, self._steps.past.in_order(key))
        return token

    async def _awaited(self, stored: "Stored", arguments: Sequence[Any], named: dict[str, Any]) -> object:
        async with self.driver.transaction() as connection:
            driver = self._choose(connection)
            xact = await _value(driver, _BEGUN)
            result = self._function(connection, *arguments, **named)
            if inspect.isawaitable(result):
                result = await result
            _check(await _value(driver, _FINISH, *await stored(result, xact)))
        return result

    def _blocking(
        self, loop: asyncio.AbstractEventLoop, stored: "Stored", given: Sequence[Any], named: dict[str, Any]
    ) -> object:
        if inspect.iscoroutinefunction(self._function):
            raise StepMismatchError("an asynchronous function needs an asynchronous connection")
        with self.driver.transaction() as connection:
            driver = self._choose(connection)
            xact = _now(_value(driver, _BEGUN))
            result = self._function(connection, *given, **named)
            step = asyncio.run_coroutine_threadsafe(stored(result, xact), loop).result()
            _check(_now(_value(driver, _FINISH, *step)))
        return result


Stored = Callable[[object, str], Coroutine[Any, Any, tuple[Any, ...]]]
"""Returns what the statement takes that stores a result."""


def _check(answer: str) -> None:
    """Raise, and so roll back, unless the result is stored."""
    if answer == "stale":
        raise ClaimLostError
    if answer != "done":
        raise StepMismatchError(
            "the function's writes are not in its transaction: it ended it, or the connection commits each statement;"
            " leave the commit to ctx.transaction"
        )


async def _value(driver: Driver, query: str, *arguments: object) -> str:
    """Return the one value of a query's one row."""
    (row,) = await driver.fetch(query, *arguments)
    (value,) = row.values()
    return str(value)


def _now(coroutine: Coroutine[Any, Any, str]) -> str:
    """Return what the coroutine of a blocking driver returns: it never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return str(ended.value)
    raise UnsupportedConnection("the connection is asynchronous")

"""What was done, by whom: each action is stored in one transaction with what it changes, and with how it went."""

import getpass
import json
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from surelane.calls import DRIVER_ERRORS, Calls, Connection, Pool, Row, translated
from surelane.errors import DatabaseRefused, DatabaseUnavailable
from surelane.json_text import read_json

MOST_IDS = 100
"""The most ids that an action's details name."""

Via = Literal["page", "api", "command", "mcp", "program"]
"""How an action came: by the operator's page, ``/v1``, the command, an assistant, or another program."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, and how. A program that does not say who acts is named by its database role: its name is empty."""

    name: str
    via: Via


_actor: ContextVar[Actor | None] = ContextVar("surelane_actor", default=None)


@contextmanager
def acting_as(name: str, via: Via) -> Iterator[None]:
    """Keep the actions of this block under a name; tasks that start in it inherit that."""
    token = _actor.set(Actor(name, via))
    try:
        yield
    finally:
        _actor.reset(token)


def current_actor() -> Actor:
    return _actor.get() or Actor("", "program")


def this_user() -> str:
    """Return ``user@host`` of this process."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's numeric user has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


class Kept:
    """An action under way, and its transaction. Set ``result``, what came of it, before the block ends."""

    def __init__(self, identity: int, connection: Connection) -> None:
        self.id = identity
        self.connection = connection
        self.calls = Calls(connection)
        self.result: dict[str, Any] = {}


class Audit:
    """Keeps actions, and lists them."""

    def __init__(self, database: Pool | Connection) -> None:
        self._calls = Calls(database)

    @asynccontextmanager
    async def keeping(
        self, action: str, target: str | None = None, detail: Mapping[str, Any] | None = None
    ) -> AsyncIterator[Kept]:
        """Run the block in a transaction that also keeps the action. One that fails changes nothing."""
        try:
            async with self._transaction() as connection:
                kept = Kept(await self._begin(Calls(connection), action, target, detail or {}), connection)
                yield kept
                await self._continue(kept.calls, kept.id, kept.result, over=True)
        except DatabaseRefused as error:
            with suppress(DatabaseUnavailable, DatabaseRefused):
                # The message of an error may quote data.
                await self.end(
                    await self.begin(action, detail or {}, target), {"error": type(error).__name__}
                )
            raise

    async def call(
        self,
        action: str,
        target: str,
        function: str,
        *arguments: object,
        told: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - a value of SQL
        """Make and keep a change of one SQL function. Return its value, which ``told`` names in the result."""
        async with self.keeping(action, target, detail) as kept:
            value = await kept.calls.call(function, *arguments)
            kept.result = {} if told is None else {told: value}
        return value

    async def begin(self, action: str, detail: Mapping[str, Any], target: str | None = None) -> int:
        """Keep an action that takes many transactions; return its id. :meth:`going_on` runs each of them."""
        async with self._transaction() as connection:
            return await self._begin(Calls(connection), action, target, detail)

    @asynccontextmanager
    async def going_on(self, identity: int) -> AsyncIterator[Kept]:
        """Run the block in a transaction of the action. It stores the block's result beside what it changes."""
        async with self._transaction() as connection:
            kept = Kept(identity, connection)
            await self._continue(kept.calls, identity, None, over=False)
            yield kept
            await self._continue(kept.calls, identity, kept.result, over=False)

    async def end(self, identity: int, result: Mapping[str, Any]) -> None:
        await self._continue(self._calls, identity, result, over=True)

    async def list_actions(
        self, limit: int = 50, *, before: int | None = None, target: str | None = None
    ) -> list[dict[str, Any]]:
        """List up to 1,000 kept actions with a smaller id than ``before``, newest first."""
        rows = await self._calls.rows("list_actions", before, target, limit)
        return [_parsed(row) for row in rows]

    async def read(self, identity: int) -> dict[str, Any] | None:
        """Return one kept action, also while it goes on; ``None`` when there is none of that id."""
        row = await self._calls.row("read_action", identity)
        return None if row is None else _parsed(row)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        """Lend a connection in a transaction, which ends with the block."""
        try:
            async with self._calls.lent() as connection, connection.transaction():
                yield connection
        except DRIVER_ERRORS as error:
            raise translated(error, uncertain=True) from error

    async def _begin(self, calls: Calls, action: str, target: str | None, detail: Mapping[str, Any]) -> int:
        actor = current_actor()
        return await calls.call("begin_action", actor.name, actor.via, action, target, _json(detail))

    async def _continue(
        self, calls: Calls, identity: int, result: Mapping[str, Any] | None, *, over: bool
    ) -> None:
        text = None if result is None else _json(result)
        await calls.call("continue_action", identity, text, over)


def some(ids: Sequence[int]) -> dict[str, Any]:
    """Return ids as details of an action: all of a few, or the first ones and how many there are."""
    return {"ids": list(ids[:MOST_IDS]), "count": len(ids)}


def _json(value: Mapping[str, Any]) -> str:
    # What PostgreSQL cannot store in jsonb is left out: it stands in keys and reasons of callers.
    return json.dumps(value, default=str).replace("\\u0000", "")


def _parsed(row: Row) -> dict[str, Any]:
    return {
        name: read_json(value) if name in ("detail", "result") and value is not None else value
        for name, value in row.items()
    }

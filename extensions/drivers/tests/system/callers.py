"""Programs that enqueue: one for each connection that the queue works over, each with its own way to a transaction.

With ``alone`` a program is in no transaction: each call is one of its own.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg
import django
import django.db
import psycopg
import sqlalchemy
from django.conf import settings
from django.db.transaction import atomic
from django.db.utils import ConnectionHandler
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from surelane import Queue, UnsupportedConnection
from surelane_drivers import SyncQueue


class Blocking:
    """A :class:`SyncQueue` whose calls a test can await: this one, or one on the connection that ``within`` lends."""

    def __init__(self, queue: SyncQueue | None, within: Any = None) -> None:
        self._queue, self._within = queue, within

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            if self._within is None:
                return getattr(self._queue, name)(*arguments, **named)
            return await self._within(lambda inner: getattr(SyncQueue(inner), name)(*arguments, **named))

        return call


@dataclass(frozen=True)
class Caller:
    """A program in a transaction: its queue, its own statements, and its connection or session."""

    queue: Any
    run: Callable[[str], Awaitable[None]]
    connection: Any


class StopError(Exception):
    """A program fails."""


Begin = Callable[[str], AbstractAsyncContextManager[Caller]]
"""Opens a program's transaction on the database of a URI. It commits at the end, or rolls back after an exception."""


@asynccontextmanager
async def rolled_back(begin: "Begin", uri: str) -> AsyncIterator[Caller]:
    """Run a program that fails at its end."""
    with suppress(StopError, asyncpg.InterfaceError):  # asyncpg cannot roll back on a closed connection
        async with begin(uri) as caller:
            yield caller
            raise StopError


def _caller(connection: Any, execute: Callable[[str], Any]) -> Caller:
    async def run(statement: str) -> None:
        done = execute(statement)
        if isawaitable(done):
            await done

    try:
        return Caller(Queue(connection), run, connection)
    except UnsupportedConnection:
        return Caller(Blocking(SyncQueue(connection)), run, connection)


@asynccontextmanager
async def asyncpg_connection(uri: str, *, alone: bool = False) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(uri)
    try:
        async with nullcontext() if alone else connection.transaction():
            yield _caller(connection, connection.execute)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pools_connection(uri: str) -> AsyncIterator[Caller]:
    pool = await asyncpg.create_pool(uri, min_size=0, max_size=1)
    async with pool, pool.acquire() as connection, connection.transaction():
        yield _caller(connection, connection.execute)


@asynccontextmanager
async def psycopg_connection(uri: str, *, alone: bool = False) -> AsyncIterator[Caller]:
    with psycopg.connect(uri, autocommit=alone) as connection:
        yield _caller(connection, connection.execute)


@asynccontextmanager
async def psycopg_async_connection(uri: str, *, alone: bool = False) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(uri, autocommit=alone) as connection:
        yield _caller(connection, connection.execute)


@contextmanager
def engine_of(uri: str, **options: Any) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(uri), poolclass=NullPool, **options
    )
    try:
        yield engine
    finally:
        engine.dispose()


def sqlalchemy_sync(opened: Callable[[Any], Any]) -> Begin:
    """Return a program on what ``opened`` makes of an engine: a connection or a session."""

    @asynccontextmanager
    async def begin(uri: str) -> AsyncIterator[Caller]:
        with engine_of(uri) as engine, opened(engine) as connection:
            yield _caller(connection, lambda statement: connection.execute(sqlalchemy.text(statement)))

    return begin


def async_engine_of(driver: str, uri: str) -> AsyncEngine:
    connect: Any = {"asyncpg": asyncpg.connect, "psycopg": psycopg.AsyncConnection.connect}[driver]
    return create_async_engine(
        f"postgresql+{driver}://", async_creator=lambda **_: connect(uri), poolclass=NullPool
    )


def sqlalchemy_async(driver: str, opened: Callable[[Any], Any] = AsyncEngine.begin) -> Begin:
    """Return a program on what ``opened`` makes of an asynchronous engine."""

    @asynccontextmanager
    async def begin(uri: str) -> AsyncIterator[Caller]:
        async with opened(async_engine_of(driver, uri)) as connection:
            yield _caller(connection, lambda statement: connection.execute(sqlalchemy.text(statement)))

    return begin


def _session(engine: AsyncEngine) -> Any:
    return async_sessionmaker(engine).begin()


def sqlalchemy_sync_inside_async(driver: str) -> Begin:
    """Return a program that calls the blocking queue where SQLAlchemy runs synchronous code on an async connection."""

    @asynccontextmanager
    async def begin(uri: str) -> AsyncIterator[Caller]:
        async with sqlalchemy_async(driver)(uri) as caller:
            yield replace(caller, queue=Blocking(None, caller.connection.run_sync))

    return begin


def djangos(uri: str) -> Any:
    """Make ``django.db.connection`` lead to a database, as a project's settings do."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # our tests run in an event loop; a project uses a thread
    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    parts = urlsplit(uri)
    django.db.connections["default"] = ConnectionHandler(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": unquote(parts.path.lstrip("/")),
                "USER": parts.username,
                "PASSWORD": parts.password or "",
                "HOST": parts.hostname or parse_qs(parts.query)["host"][0],
                "PORT": parts.port or "",
            }
        }
    )["default"]
    return django.db.connection


def django_execute(statement: str) -> None:
    with django.db.connection.cursor() as cursor:
        cursor.execute(statement)


@asynccontextmanager
async def django_atomic(uri: str, *, alone: bool = False) -> AsyncIterator[Caller]:
    connection = djangos(uri)
    try:
        with nullcontext() if alone else atomic():
            yield _caller(connection, django_execute)
    finally:
        connection.close()


TRANSACTIONS: dict[str, Begin] = {
    "asyncpg": asyncpg_connection,
    "asyncpg-pool": asyncpg_pools_connection,
    "psycopg": psycopg_connection,
    "psycopg-async": psycopg_async_connection,
    "sqlalchemy": sqlalchemy_sync(sqlalchemy.Engine.begin),
    "sqlalchemy-session": sqlalchemy_sync(lambda engine: sessionmaker(engine).begin()),
    "sqlalchemy-psycopg-async": sqlalchemy_async("psycopg"),
    "sqlalchemy-psycopg-async-session": sqlalchemy_async("psycopg", _session),
    "sqlalchemy-asyncpg": sqlalchemy_async("asyncpg"),
    "sqlalchemy-asyncpg-session": sqlalchemy_async("asyncpg", _session),
    "sqlalchemy-asyncpg-run-sync": sqlalchemy_sync_inside_async("asyncpg"),
    "django": django_atomic,
}


def _autocommit(engine: Any) -> Any:
    return engine.execution_options(isolation_level="AUTOCOMMIT")


ALONE: dict[str, Begin] = {
    "asyncpg": partial(asyncpg_connection, alone=True),
    "psycopg": partial(psycopg_connection, alone=True),
    "psycopg-async": partial(psycopg_async_connection, alone=True),
    "sqlalchemy": sqlalchemy_sync(lambda engine: _autocommit(engine).connect()),
    "sqlalchemy-asyncpg": sqlalchemy_async("asyncpg", lambda engine: AsyncSession(_autocommit(engine))),
    "django": partial(django_atomic, alone=True),
}

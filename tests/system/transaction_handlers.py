"""Handlers whose steps commit with a team's own data, over each connection that the queue works over."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import sqlalchemy
from django.db import connections
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from surelane_worker import Context, Event, Handlers
from tests.system.callers import async_engine_of, django_execute, djangos, engine_of
from tests.system.durable_handlers import Log

handlers = Handlers()

CHARGE = "insert into charge (who) values (session_user) returning 17"
"""The team's table."""


@asynccontextmanager
async def _asyncpg(uri: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(uri)
    yield connection
    await connection.close()


@asynccontextmanager
async def _asyncpg_pool(uri: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(uri, min_size=0, max_size=1) as pool:
        yield pool


@asynccontextmanager
async def _psycopg(uri: str) -> AsyncIterator[Any]:
    with psycopg.connect(uri) as connection:
        yield connection


@asynccontextmanager
async def _psycopg_async(uri: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(uri, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def _sqlalchemy(uri: str) -> AsyncIterator[Any]:
    with engine_of(uri) as engine, engine.connect() as connection:
        yield connection


@asynccontextmanager
async def _session(uri: str) -> AsyncIterator[Any]:
    with engine_of(uri) as engine, Session(engine) as session:
        yield session


@asynccontextmanager
async def _sqlalchemy_async(uri: str) -> AsyncIterator[Any]:
    async with async_engine_of("psycopg")(uri).connect() as connection:
        yield connection


@asynccontextmanager
async def _async_session(uri: str) -> AsyncIterator[Any]:
    async with AsyncSession(async_engine_of("asyncpg")(uri)) as session:
        yield session


@asynccontextmanager
async def _django(uri: str) -> AsyncIterator[Any]:
    connection = djangos(uri)
    connections.databases["default"] = connection.settings_dict  # for other threads
    yield connection


Open = Callable[[str], AbstractAsyncContextManager[Any]]


async def awaited(connection: Any, then: Callable[[], object]) -> str:
    """Charge on an asynchronous connection."""
    await connection.execute(CHARGE)
    then()
    return "paid"


async def awaited_text(connection: Any, then: Callable[[], object]) -> str:
    """Charge on an asynchronous connection or session of SQLAlchemy."""
    await connection.execute(sqlalchemy.text(CHARGE))
    then()
    return "paid"


def called(connection: Any, then: Callable[[], object]) -> str:
    """Charge on a synchronous connection."""
    connection.execute(CHARGE)
    then()
    return "paid"


def called_text(connection: Any, then: Callable[[], object]) -> str:
    """Charge on a synchronous connection or session of SQLAlchemy."""
    connection.execute(sqlalchemy.text(CHARGE))
    then()
    return "paid"


def djangos_own(_connection: Any, then: Callable[[], object]) -> str:
    """Charge as Django's models do, on the connection of the thread."""
    django_execute(CHARGE)
    then()
    return "paid"


DRIVERS: dict[str, tuple[Open, Callable[..., Any]]] = {
    "asyncpg": (_asyncpg, awaited),
    "asyncpg-pool": (_asyncpg_pool, awaited),
    "psycopg": (_psycopg, called),
    "psycopg-async": (_psycopg_async, awaited),
    "sqlalchemy": (_sqlalchemy, called_text),
    "sqlalchemy-session": (_session, called_text),
    "sqlalchemy-psycopg-async": (_sqlalchemy_async, awaited_text),
    "sqlalchemy-asyncpg-session": (_async_session, awaited_text),
    "django": (_django, djangos_own),
}


@handlers.on("charge")
async def charge(event: Event, ctx: Context) -> Any:
    """Die once in the transaction, before it commits, and once after the commit."""
    log = Log(event)
    opened, function = DRIVERS[event.payload["driver"]]

    def noted() -> None:
        log.add("ran")
        log.die_once("before the commit")

    async with opened(event.payload["uri"]) as connection:
        paid = await ctx.transaction("charge", connection, function, noted)
        log.die_once("after the commit")
    return paid

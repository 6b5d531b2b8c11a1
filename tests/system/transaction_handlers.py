"""Handlers whose steps commit with a team's own data, over each connection that the queue works over."""

import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import sqlalchemy
from django.db import connections
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from surelane_worker import Context, Event, Handlers
from tests.system.callers import async_engine_of, django_execute, djangos, engine_of

handlers = Handlers()


class Log:
    """A file in which a run notes what it does, across deaths of its worker."""

    def __init__(self, event: Event) -> None:
        self.path = Path(event.payload["log"])

    def add(self, what: str) -> None:
        """Note something."""
        with self.path.open("a") as file:
            file.write(f"{what}\n")

    def die_once(self, where: str) -> None:
        """Kill this process, the first time it gets here."""
        died = f"died {where}"
        if not self.path.exists() or died not in self.path.read_text().splitlines():
            self.add(died)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)


CHARGE = "insert into charge (who) values (session_user) returning 17"
"""The team's table."""


@asynccontextmanager
async def _asyncpg(uri: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(uri)
    yield connection
    await connection.close()


@asynccontextmanager
async def _psycopg_async(uri: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(uri, autocommit=True) as connection:
        yield connection


def _blocking(opened: Callable[[Any], AbstractContextManager[Any]], *, engine: bool = False) -> "Open":
    """Return what opens a synchronous connection: by a URI, or by an engine of SQLAlchemy."""

    @asynccontextmanager
    async def opens(uri: str) -> AsyncIterator[Any]:
        with engine_of(uri) if engine else nullcontext(uri) as to, opened(to) as connection:
            yield connection

    return opens


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
    "asyncpg-pool": (partial(asyncpg.create_pool, min_size=0, max_size=1), awaited),
    "psycopg": (_blocking(psycopg.connect), called),
    "psycopg-async": (_psycopg_async, awaited),
    "sqlalchemy": (_blocking(sqlalchemy.Engine.connect, engine=True), called_text),
    "sqlalchemy-session": (_blocking(Session, engine=True), called_text),
    "sqlalchemy-psycopg-async": (lambda uri: async_engine_of("psycopg")(uri).connect(), awaited_text),
    "sqlalchemy-asyncpg-session": (lambda uri: AsyncSession(async_engine_of("asyncpg")(uri)), awaited_text),
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

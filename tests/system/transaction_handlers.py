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

from extensions.drivers.tests.system.callers import (
    ALONE,
    Begin,
    async_engine_of,
    django_execute,
    djangos,
    engine_of,
)
from surelane_worker import Context, Event, Handlers

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
TEXT = sqlalchemy.text(CHARGE)


def _own(begin: Begin) -> "Open":
    """Return what opens a program's connection outside a transaction."""

    @asynccontextmanager
    async def opens(uri: str) -> AsyncIterator[Any]:
        async with begin(uri) as caller:
            yield caller.connection

    return opens


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


def awaited(statement: Any) -> Callable[..., Any]:
    """Return what charges on an asynchronous connection or session."""

    async def charges(connection: Any, then: Callable[[], object]) -> str:
        await connection.execute(statement)
        then()
        return "paid"

    return charges


def called(statement: Any) -> Callable[..., Any]:
    """Return what charges on a synchronous connection or session."""

    def charges(connection: Any, then: Callable[[], object]) -> str:
        connection.execute(statement)
        then()
        return "paid"

    return charges


def djangos_own(_connection: Any, then: Callable[[], object]) -> str:
    """Charge as Django's models do, on the connection of the thread."""
    django_execute(CHARGE)
    then()
    return "paid"


DRIVERS: dict[str, tuple[Open, Callable[..., Any]]] = {
    "asyncpg": (_own(ALONE["asyncpg"]), awaited(CHARGE)),
    "asyncpg-pool": (partial(asyncpg.create_pool, min_size=0, max_size=1), awaited(CHARGE)),
    "psycopg": (_blocking(psycopg.connect), called(CHARGE)),
    "psycopg-async": (_own(ALONE["psycopg-async"]), awaited(CHARGE)),
    "sqlalchemy": (_blocking(sqlalchemy.Engine.connect, engine=True), called(TEXT)),
    "sqlalchemy-session": (_blocking(Session, engine=True), called(TEXT)),
    "sqlalchemy-psycopg-async": (lambda uri: async_engine_of("psycopg", uri).connect(), awaited(TEXT)),
    "sqlalchemy-asyncpg-session": (lambda uri: AsyncSession(async_engine_of("asyncpg", uri)), awaited(TEXT)),
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

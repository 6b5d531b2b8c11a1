"""How a command reaches the database and ends: one connection, one exit code, one line an error."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import asyncpg
import typer

from surelane.calls import Connection
from surelane.errors import OutcomeUnknown, SchemaMissing, SurelaneError
from surelane_operator.operations import Operations
from surelane_service.pool import FORBIDDEN, UNAVAILABLE

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_DATABASE = 4

Result = TypeVar("Result")

Database = Annotated[
    str,
    typer.Option(
        envvar=["SURELANE_OPERATOR_DATABASE_URL", "DATABASE_URL"],
        help="A libpq URI, as a member of agent_operator.",
        show_envvar=True,
    ),
]
"""The option every command has that asks the database."""


def run(
    dsn: str, work: Callable[[Operations, Connection], Awaitable[Result]], *, within: float | None = 30
) -> Result:
    """Runs ``work`` on a connection of its own; an error of the database is one line and an exit code.

    Args:
        dsn: the database's.
        work: what is done.
        within: seconds for all of it; where ``None``, each statement has 30.
    """
    try:
        return asyncio.run(_connected(dsn, work, within))
    except OutcomeUnknown as error:
        raise failed(f"no answer came; the command may have taken effect: {error}", EXIT_DATABASE) from None
    except UNAVAILABLE as error:
        raise failed(f"cannot reach the database: {error}", EXIT_DATABASE) from None
    except FORBIDDEN as error:
        raise failed(f"{error}; connect as a member of agent_operator", EXIT_DATABASE) from None
    except SchemaMissing:
        raise failed(
            "the database has no schema of this release; run: python -m surelane_migrations apply",
            EXIT_DATABASE,
        ) from None
    except (SurelaneError, asyncpg.PostgresError, ValueError) as error:
        raise failed(str(error), EXIT_FAILED) from None


async def _connected(
    dsn: str, work: Callable[[Operations, Connection], Awaitable[Result]], within: float | None
) -> Result:
    async with asyncio.timeout(within):
        connection = await asyncpg.connect(
            dsn,
            server_settings={"application_name": "surelane"},
            timeout=10,
            command_timeout=30,
            statement_cache_size=0,  # each is sent once, and a transaction pooler would lose them
        )
        try:
            return await work(Operations(connection), connection)
        finally:
            await connection.close(timeout=2)


def failed(message: str, code: int) -> typer.Exit:
    """Says what went wrong on standard error; to be raised."""
    typer.echo(f"surelane: {message}", err=True)
    return typer.Exit(code)

"""How a command reaches the database and ends: one connection, one exit code, one line per error."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import ValidationError
from typer import Option

from surelane.calls import DRIVER_ERRORS, Connection, translating
from surelane.codec import SETTING, Codec, codec_of, read_keys
from surelane.errors import DatabaseUnavailable, Forbidden, OutcomeUnknown, SchemaMissing, SurelaneError
from surelane_operator.changes import Changes
from surelane_operator.doctor.server import connected
from surelane_operator.reads.events import Reads
from surelane_service.manifest import MANIFEST
from surelane_service.service_settings import DEVELOPMENT_URL


class ExitCode(IntEnum):
    """How a command ended."""

    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DATABASE = 4
    INTERRUPTED = 130


Result = TypeVar("Result")

_AWAY = {
    OutcomeUnknown: "no answer came; the command may have taken effect: {}",
    DatabaseUnavailable: "cannot reach the database: {}",
    Forbidden: "{}; connect as a member of agent_operator",
    SchemaMissing: "the database has no schema of this release; run: python -m surelane_migrations apply",
}
"""What a command says where the database is away, too old, or refuses the role."""

DATABASES = ["SURELANE_OPERATOR_DATABASE_URL", "DATABASE_URL"]


def development() -> str:
    """Return the database of the ``surelane dev`` that runs in this directory, or in one above it, or end."""
    if (told := _told()) is not None:
        return told
    advice = "set SURELANE_OPERATOR_DATABASE_URL or DATABASE_URL, give --database, or start: surelane dev"
    raise failed(f"no database is named: {advice}", ExitCode.USAGE)


def _told() -> str | None:
    """Return what the nearest file says that is this user's own: in a shared directory anybody may put one."""
    at = Path(os.environ.get("SURELANE_DATA_DIR") or ".surelane/postgres")
    for directory in (Path.cwd(), *Path.cwd().parents):
        told = directory / at / DEVELOPMENT_URL
        if told.is_file() and told.stat().st_uid == os.getuid():
            url, _, manifest = told.read_text().partition("\n")
            os.environ.setdefault(MANIFEST, manifest)
            return url
    return None


Database = Annotated[
    str,
    Option(
        default_factory=development,
        show_default=False,
        envvar=DATABASES,
        help="The database's libpq URI, for a member of agent_operator. Default: the one of `surelane dev` here.",
        show_envvar=True,
    ),
]
"""The option of every command that asks the database."""
Json = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]


def run(
    dsn: str, work: Callable[[Changes, Connection], Awaitable[Result]], *, within: float | None = 30
) -> Result:
    """Run ``work`` on its own connection, ``within`` so many seconds. An error becomes one line and an exit code.

    ``None`` bounds each statement only, to 30 seconds.
    """
    try:
        with translating():
            return asyncio.run(_connected(dsn, work, within))
    except (KeyError, ValidationError):  # a function of another release answered
        raise failed(_AWAY[SchemaMissing], ExitCode.DATABASE) from None
    except (SurelaneError, ValueError) as error:
        for kind, said in _AWAY.items():
            if isinstance(error, kind):
                raise failed(said.format(error), ExitCode.DATABASE) from None
        raise failed(str(error), ExitCode.FAILED) from None


async def _connected(
    dsn: str, work: Callable[[Changes, Connection], Awaitable[Result]], within: float | None
) -> Result:
    async with asyncio.timeout(within), connected(dsn) as connection:
        return await work(Changes(connection, _codec(connection)), connection)


def _codec(connection: Connection) -> Codec:
    """Return the codec of the services' settings, as far as they are set here."""
    on = os.environ.get("SURELANE_ENCRYPT_EVENTS", "").strip().lower() in ("1", "true", "yes", "on")
    return codec_of(read_keys(os.environ.get(SETTING, "")), connection, on=on)


def known_kinds(incomplete: str) -> list[str]:
    """Return the kinds that a shell may complete to: none where the database does not answer soon."""
    dsn = next((os.environ[name] for name in DATABASES if os.environ.get(name)), None) or _told()
    try:
        found = asyncio.run(_connected(dsn, lambda changes, _: changes.kinds(), 2)) if dsn else []
    except (SurelaneError, *DRIVER_ERRORS, ValueError):
        found = []
    return [kind for kind in found if kind.startswith(incomplete)]


async def event_named(reads: Reads, key: str, *, texts: bool = False) -> dict[str, Any]:
    """Return the event with an id or a natural key; with ``texts`` also what people wrote: the look at it is kept.

    A command that finds none ends.
    """
    ids = await reads.find(key)
    read = reads.look if texts else reads.get
    event = await read(ids[0]) if ids else None
    if event is None:
        raise failed(f"there is no event {key}", ExitCode.NOT_FOUND)
    return event


@contextmanager
def interruptible() -> Iterator[None]:
    """End the command quietly when somebody presses Ctrl-C, or closes the pipe that it writes to."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        sys.stderr.close()  # the interpreter would complain at its end
        raise typer.Exit(0) from None


def read_json(text: str, wrong: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value that a person has given. A command that cannot read it says what is ``wrong``, and ends."""
    try:
        return json.loads(text)
    except ValueError:
        raise failed(wrong, ExitCode.USAGE) from None


def failed(message: str, code: int) -> typer.Exit:
    """Print a message to standard error, and return the exception to raise."""
    typer.echo(f"surelane: {message}", err=True)
    return typer.Exit(code)

"""Define the command ``python -m surelane_migrations`` for operators, Jobs and init containers.

Results go to standard output, progress and errors to standard error. Exit codes are in ``errors``.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from surelane_migrations.common.connecting import UNVERIFIED, Connection, DatabaseUriError, unverified
from surelane_migrations.common.durations import parse_duration
from surelane_migrations.common.needs import NeedState, answered
from surelane_migrations.database import connected, read_facts
from surelane_migrations.errors import DifferentError, IncompatibleError, MigrationError
from surelane_migrations.files import PACKAGED, discover
from surelane_migrations.migration_settings import load_database_url, load_lock_settings
from surelane_migrations.runner import Migration
from surelane_migrations.runner import plan as plan_migration
from surelane_migrations.status import expected_schema, read_status, wait_for_schema
from surelane_migrations.status import verify as verify_schema
from surelane_migrations.version import RELEASE

app = typer.Typer(
    name="surelane-migrations",
    help=f"Brings the database of DATABASE_URL up to the schema of Surelane {RELEASE}.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Result = TypeVar("Result")

Directory = Annotated[
    Path, typer.Option("--scripts", help="Read the scripts here.", show_default="this release's")
]
Again = Annotated[
    bool, typer.Option("--again", help="Migrate even if the version is equal; repairs what verify finds.")
]
Timeout = Annotated[
    timedelta, typer.Option(parser=parse_duration, metavar="DURATION", help="Give up after this: 30s, 10m.")
]


@app.command()
def apply(scripts: Directory = PACKAGED, again: Again = False) -> None:
    """Migrate to this release, in one transaction; do nothing if that is done."""
    dsn, migration = load_database_url(), _migration(scripts, again)
    with suppress(DatabaseUriError):  # it is told in a moment
        if host := unverified(dsn):
            _say(f"warning: the certificate of {host} is not checked: {UNVERIFIED}")
    _say(str(_run(migration.apply(dsn))))


@app.command()
def status(
    scripts: Directory = PACKAGED,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the schema's version and which scripts are applied, pending or changed."""
    found = _run(_with_connection(lambda connection: read_status(connection, discover(scripts))))
    print(json.dumps(asdict(found), default=str, indent=2) if as_json else found.as_text())


@app.command()
def check() -> None:
    """Show what Surelane needs of a database, and what is missing: before it is installed, and after."""
    answers = _run(_with_connection(_needs))
    for each in answers:
        print(f"{each.level:<8} {each.name}: {each.found}")
        if each.advice:
            print(f"         -> {each.advice}")
    if wrong := [each.name for each in answers if each.level == "problem"]:
        raise IncompatibleError(
            f"the database lacks what Surelane needs: {', '.join(wrong)}. See above what to do."
        )


async def _needs(connection: Connection) -> list[NeedState]:
    facts = await read_facts(connection)
    taken = f"another program's: it has {facts.strangers}" if facts.strangers else "free, or Surelane's"
    level = "problem" if facts.strangers else "ok"
    advice = (
        "give Surelane a database of its own, or rename that program's schema" if facts.strangers else None
    )
    found = await answered(connection)
    return [*found, NeedState("schema agent", level, taken, advice)]


@app.command()
def plan(scripts: Directory = PACKAGED, again: Again = False) -> None:
    """Print the SQL that apply would run; apply nothing."""
    migration = _migration(scripts, again)
    print(_run(_with_connection(lambda connection: plan_migration(connection, migration))), end="")


@app.command()
def wait(timeout: Timeout = timedelta(minutes=5)) -> None:
    """Wait until the schema is at this release or newer; never migrate."""
    _run(wait_for_schema(load_database_url(), timeout=timeout, report=_say))


@app.command()
def verify(scripts: Directory = PACKAGED) -> None:
    """Compare every object, function body and grant with what this release's scripts make."""
    expected = expected_schema(scripts)
    found = _run(_with_connection(lambda connection: verify_schema(connection, discover(scripts), expected)))
    for line in found:
        print(line)
    if found:
        raise DifferentError(
            "the schema is not what this release makes. apply --again restores functions and grants; "
            "change tables and indexes back by hand."
        )
    _say(f"the schema is what {RELEASE} makes: {len(expected)} objects and grants")


def run() -> None:
    """Run the command. Print each of our errors as one message, and end with its exit code."""
    try:
        app()
    except MigrationError as error:
        _say(f"error: {error}")
        raise SystemExit(error.exit_code) from None


def _migration(directory: Path, again: bool) -> Migration:
    locks = load_lock_settings()
    return Migration(discover(directory), locks=locks, again=again, report=_say)


async def _with_connection(read: Callable[[Connection], Awaitable[Result]]) -> Result:
    async with connected(load_database_url()) as connection:
        return await read(connection)


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end, or until SIGTERM or SIGINT. A signal rolls back; the exit code is 128 plus its number.

    Without a handler, SIGTERM does not end a container's first process.
    """
    received: list[int] = []

    async def main() -> Result:
        task = asyncio.create_task(work)

        def cancel(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, cancel, number)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        _say(f"interrupted by {signal.Signals(received[0]).name}; nothing is left halfway")
        raise SystemExit(128 + received[0]) from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

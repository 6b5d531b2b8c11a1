"""``surelane keys``: the keys that encrypt stored secrets."""

import os
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from surelane.calls import Connection
from surelane.encryption.data_keys import DataKeys
from surelane.encryption.keys import SETTING, Keyring, SealedError, new_key
from surelane_operator.cli.output import say
from surelane_operator.cli.session import EXIT_USAGE, Json, development, failed, run
from surelane_service.installations import Installations

app = typer.Typer(help=f"Make and rotate the keys of {SETTING}.", no_args_is_help=True)

Place = TypeVar("Place")
BATCH = 100
"""Rows of one step of a rotation."""

ServiceDatabase = Annotated[
    str,
    typer.Option(
        "--database",
        default_factory=development,
        show_default=False,
        envvar="DATABASE_URL",
        help="The database's libpq URI, for a member of agent_worker or agent_ingest, which may read sealed tokens.",
        show_envvar=True,
    ),
]


@app.command("new")
def make_key() -> None:
    """Print a new key for SURELANE_ENCRYPTION_KEYS."""
    print(new_key())  # noqa: T201 - the command's output


@app.command()
def rotate(database: ServiceDatabase, as_json: Json = False) -> None:
    """Encrypt everything that is stored with the first key of SURELANE_ENCRYPTION_KEYS.

    The services keep running; give all of them the new list first. A rotation that was interrupted goes on when it is
    started again. Once it is done, the other keys can go from the list.
    """
    try:
        keys = Keyring.read(os.environ.get(SETTING, ""))
    except ValueError as error:
        raise failed(f"{SETTING}: {error}", EXIT_USAGE) from None
    if keys is None:
        raise failed(f"{SETTING} is not set", EXIT_USAGE)
    sealed = run(database, lambda _, connection: _seal_anew(connection, keys), within=None)
    say(
        f"{sealed} sealed anew with the key {keys.current_id.hex()}; none is left",
        {"sealed": sealed},
        as_json=as_json,
    )


async def _seal_anew(connection: Connection, keys: Keyring) -> int:
    """Seal tokens and data keys anew, and return how many."""
    installations, data_keys = Installations(connection, keys), DataKeys(connection, keys)
    tokens = await _all_sealed(installations.seal_anew, ("", False, ""), 0)
    return await _all_sealed(data_keys.seal_anew, b"", tokens)


async def _all_sealed(
    step: Callable[[Place, int], Awaitable[tuple[int, Place | None]]], first: Place, total: int
) -> int:
    after = first
    while True:
        try:
            sealed, last = await step(after, BATCH)
        except SealedError as error:
            raise ValueError(f"after {total} rows: {error}") from None
        total += sealed
        if last is None and after == first:
            return total
        after = (
            first if last is None else last
        )  # from the top, until a pass finds none: others write meanwhile
        if sys.stderr.isatty():
            typer.echo(f"\r{total} sealed anew", err=True, nl=False)

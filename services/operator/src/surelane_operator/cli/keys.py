"""``surelane keys``: the keys that encrypt stored secrets."""

import os
import sys

import typer

from surelane.calls import Connection
from surelane.encryption.keys import SETTING, Keyring, new_key
from surelane_operator.cli.output import say
from surelane_operator.cli.session import Database, ExitCode, Json, failed, run
from surelane_operator.rotating import BATCH, Rotation

app = typer.Typer(help=f"Make and rotate the keys of {SETTING}.", no_args_is_help=True)


@app.command("new")
def make_key() -> None:
    """Print a new key for SURELANE_ENCRYPTION_KEYS."""
    print(new_key())  # noqa: T201 - the command's output


@app.command()
def rotate(database: Database, as_json: Json = False) -> None:
    """Encrypt everything that is stored with the first key of SURELANE_ENCRYPTION_KEYS.

    The services keep running; give all of them the new list first. A rotation that was interrupted goes on when it is
    started again. Once it is done, the other keys can go from the list. What no key of the list opens is left as it is
    and named: a data key is replaced by another one, and a workspace must install the app again.
    """
    try:
        keys = Keyring.read(os.environ.get(SETTING, ""))
    except ValueError as error:
        raise failed(f"{SETTING}: {error}", ExitCode.USAGE) from None
    if keys is None:
        raise failed(f"{SETTING} is not set", ExitCode.USAGE)
    rotation = run(database, lambda _, connection: _rotated(connection, keys), within=None)
    for name, why in rotation.lost.items():
        typer.echo(f"cannot be opened: {name} ({why})", err=True)
    left = f"{len(rotation.lost)} cannot be opened" if rotation.lost else "none is left"
    say(
        f"{rotation.sealed} sealed anew with the key {keys.current_id.hex()}; {left}",
        {"sealed": rotation.sealed, "lost": rotation.lost},
        as_json=as_json,
    )
    if rotation.lost:
        raise typer.Exit(ExitCode.FAILED)


async def _rotated(connection: Connection, keys: Keyring) -> Rotation:
    def told(sealed: int) -> None:
        if sealed % BATCH == 0 and sys.stderr.isatty():
            typer.echo(f"\r{sealed} sealed anew", err=True, nl=False)

    rotation = Rotation(connection, keys, told)
    await rotation.run()
    return rotation

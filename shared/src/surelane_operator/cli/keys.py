"""``surelane keys``: the keys that encrypt stored secrets."""

import typer

from surelane_service.keys import new_key

app = typer.Typer(help="Make and rotate the keys of SURELANE_ENCRYPTION_KEYS.", no_args_is_help=True)


@app.callback()
def keys() -> None:
    """Make and rotate the keys of SURELANE_ENCRYPTION_KEYS."""


@app.command("new")
def make_key() -> None:
    """Print a new key for SURELANE_ENCRYPTION_KEYS."""
    print(new_key())  # noqa: T201 - the command's output

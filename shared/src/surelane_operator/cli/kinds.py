"""``surelane kinds``: pause and resume kinds."""

from typing import Annotated

import typer

from surelane_operator.cli.output import say
from surelane_operator.cli.session import Database, Json, known_kinds, run

app = typer.Typer(help="Pause and resume kinds.", no_args_is_help=True)

Kind = Annotated[str, typer.Argument(help="A kind, such as slack.app_mention.", autocompletion=known_kinds)]


@app.command()
def pause(kind: Kind, database: Database, as_json: Json = False) -> None:
    """Pause a kind: its waiting events are neither claimed nor expired. Running ones finish."""
    run(database, lambda operations, _: operations.pause(kind))
    say(f"{kind} is paused", {"kind": kind, "paused": True}, as_json=as_json)


@app.command()
def resume(kind: Kind, database: Database, as_json: Json = False) -> None:
    """Resume a kind."""
    run(database, lambda operations, _: operations.resume(kind))
    say(f"{kind} is running", {"kind": kind, "paused": False}, as_json=as_json)

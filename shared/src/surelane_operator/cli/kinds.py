"""``surelane kinds``: pause and resume kinds."""

from typing import Annotated

import typer

from surelane_operator.cli.session import Database, run

app = typer.Typer(help="Pause and resume kinds.", no_args_is_help=True)

Kind = Annotated[str, typer.Argument(help="A kind, such as slack.app_mention.")]


@app.command()
def pause(kind: Kind, database: Database) -> None:
    """Pause a kind: its waiting events are neither claimed nor expired. Running ones finish."""
    run(database, lambda operations, _: operations.pause(kind))
    typer.echo(f"{kind} is paused")


@app.command()
def resume(kind: Kind, database: Database) -> None:
    """Resume a kind."""
    run(database, lambda operations, _: operations.resume(kind))
    typer.echo(f"{kind} is running")

"""The commands that this extension adds to ``surelane``."""

from typing import Annotated

import typer
from typer import Argument, Option

from surelane.calls import Connection
from surelane_operator.changes import Changes
from surelane_operator.cli.output import say
from surelane_operator.cli.session import Database, Json, run
from surelane_operator.doctor.server import connected
from surelane_operator.shards import known
from surelane_shards.moving import move

workspaces = typer.Typer(help="Move workspaces between installations.", no_args_is_help=True)


@workspaces.command("move")
def move_workspace(
    database: Database,
    team: Annotated[str, Argument(help="The workspace's id, such as T012AB3CD.")],
    to: Annotated[
        str, Option(help="The other installation's libpq URI. Both URIs are for the schemas' owners.")
    ],
    as_json: Json = False,
) -> None:
    """Move a workspace's live events to another installation, with its tokens and what ended within the last hour.

    Before it, let the router answer the workspace's requests with 503. After it, let the router pass them to the other
    installation. It waits until nothing of the workspace runs. If it is interrupted, repeat it: nothing is lost. Both
    URIs are those of the schemas' owners.
    """

    async def work(_: Changes, source: Connection) -> dict[str, int]:
        async with connected(known().get(to, to)) as target:
            return await move(source, target, team, lambda waits: typer.echo(waits, err=True))

    moved = run(database, work, within=None)
    rows = ", ".join(f"{count} of {table}" for table, count in moved.items() if count)
    say(f"moved rows: {rows or 'none'}", {"moved": moved}, as_json=as_json)

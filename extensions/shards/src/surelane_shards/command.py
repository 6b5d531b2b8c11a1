"""The commands that this extension adds to ``surelane``."""

import asyncio
import sys
from typing import Annotated

import typer
from typer import Argument, Option

from surelane.calls import Connection
from surelane_operator.changes import Changes
from surelane_operator.cli.output import say
from surelane_operator.cli.session import Database, Json, run
from surelane_operator.doctor.server import connected
from surelane_operator.shards import known
from surelane_shards.moving import hold, move
from surelane_shards.placing import place, read_workspaces

workspaces = typer.Typer(help="Place workspaces, and move them between installations.", no_args_is_help=True)
Team = Annotated[str, Argument(help="The workspace's id, such as T012AB3CD.")]


@workspaces.command("hold")
def hold_workspace(database: Database, team: Team) -> None:
    """Hold a workspace's events in the installation that it moves to, before the router passes them there.

    They are stored, and claimed once the move has ended. The URI is that of the schema's owner.
    """

    async def work(_: Changes, target: Connection) -> None:
        await hold(target, team, _tell)

    run(database, work, within=None)


@workspaces.command("place")
def place_workspaces() -> None:
    """Say where each new workspace belongs: TEAM FROM TO, for each that standard input lacks.

    Standard input has the workspaces that have a place. The others get the installation that has the fewest.
    """
    has = asyncio.run(read_workspaces(known()))
    for team, source, target in place(has, set(sys.stdin.read().split())):
        typer.echo(f"{team} {source} {target}")


@workspaces.command("move")
def move_workspace(
    database: Database,
    team: Team,
    to: Annotated[
        str, Option(help="The other installation's libpq URI. Both URIs are for the schemas' owners.")
    ],
    as_json: Json = False,
) -> None:
    """Move a workspace's live events to another installation, with its tokens and what ended within the last hour.

    Before it, hold the workspace in the other installation, and let the router pass its requests there. It waits until
    nothing of the workspace runs. If it is interrupted, repeat it, or move the workspace back: nothing is lost. Both
    URIs are those of the schemas' owners.
    """

    async def work(_: Changes, source: Connection) -> dict[str, int]:
        async with connected(known().get(to, to)) as target:
            return await move(source, target, team, _tell)

    moved = run(database, work, within=None)
    rows = ", ".join(f"{count} of {table}" for table, count in moved.items() if count)
    say(f"moved rows: {rows or 'none'}", {"moved": moved}, as_json=as_json)


def _tell(waits: str) -> None:
    typer.echo(waits, err=True)

"""``surelane feedback``: export what people think of agents' answers."""

import json
from datetime import datetime
from typing import Annotated

import typer
from typer import Option

from surelane.calls import Connection
from surelane_operator.changes import Changes
from surelane_operator.cli.events import aware
from surelane_operator.cli.session import Database, interruptible, run
from surelane_operator.reads.feedback import Which, list_feedback

app = typer.Typer(help="Export what people think of agents' answers.", no_args_is_help=True)


@app.callback()
def feedback() -> None:
    """Export what people think of agents' answers."""


@app.command("export")
def export(
    database: Database,
    since: Annotated[datetime | None, Option(help="Only what people said at or after this.")] = None,
    workspace: Annotated[str | None, Option(help="Only this workspace, such as T012AB3CD.")] = None,
) -> None:
    """Print ratings as JSON lines, newest first, with what was asked and answered. That you looked is kept.

    What cannot be decrypted with the keys that are set here is null.
    """

    async def work(changes: Changes, _: Connection) -> None:
        async for each in list_feedback(changes, Which(workspace, aware(since))):
            typer.echo(json.dumps(each | {"at": each["at"].isoformat()}, ensure_ascii=False))

    with interruptible():
        run(database, work, within=None)

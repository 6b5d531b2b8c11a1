"""``surelane feedback``: export what people think of agents' answers."""

import json
from datetime import datetime
from typing import Annotated

import typer

from surelane_operator.changes import Changes
from surelane_operator.cli.session import Database, interruptible, run
from surelane_operator.reads.feedback import list_feedback

app = typer.Typer(help="Export what people think of agents' answers.", callback=lambda: None)


@app.command("export")
def export(
    database: Database,
    since: Annotated[datetime | None, typer.Option(help="Only what people said at or after this.")] = None,
    workspace: Annotated[str | None, typer.Option(help="Only this workspace, such as T012AB3CD.")] = None,
) -> None:
    """Print ratings as JSON lines, newest first, with the turns' texts. That you looked is kept."""

    async def work(changes: Changes, _: object) -> None:
        which = workspace, since and since.astimezone(), None
        async for each in list_feedback(changes, *which, pages=None):
            typer.echo(json.dumps(each, default=str, ensure_ascii=False))

    with interruptible():
        run(database, work, within=None)

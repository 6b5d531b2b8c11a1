"""``surelane actions``: what operators did."""

from typing import Annotated

import typer

from surelane_operator.cli.output import Column, middle, show_json, show_table
from surelane_operator.cli.session import Database, Json, run

_COLUMNS = (
    Column("id"),
    Column("at"),
    Column("who", cut=middle),
    Column("via"),
    Column("action"),
    Column("target", cut=middle),
    Column("result", cut=middle),
)


def list_actions(
    database: Database,
    target: Annotated[
        str | None, typer.Option(help="Only actions on this, such as: event 7, kind chat, schedule daily.")
    ] = None,
    before: Annotated[int | None, typer.Option(help="Only actions with a smaller id: the next page.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many to list.")] = 50,
    as_json: Json = False,
) -> None:
    """List what operators did, newest first: who, when, what, and what came of it."""
    found = run(
        database,
        lambda operations, _: operations.actions.list_actions(limit, before=before, target=target),
    )
    show_json(found) if as_json else show_table(_COLUMNS, found, empty="no operator has done anything yet")

"""``surelane kinds`` and ``surelane limits``: pause and resume kinds, and bound how many of their events run."""

from datetime import timedelta
from typing import Annotated

import typer

from surelane_operator.cli.output import Column, middle, say, show_json, show_table
from surelane_operator.cli.session import EXIT_NOT_FOUND, EXIT_USAGE, Database, Json, failed, known_kinds, run
from surelane_service.rates import Rate, parse_rate

app = typer.Typer(help="Pause and resume kinds.", no_args_is_help=True)
limits = typer.Typer(help="List, change and reset the limits of kinds.", no_args_is_help=True)

Kind = Annotated[str, typer.Argument(help="A kind, such as slack.app_mention.", autocompletion=known_kinds)]
NONE = "none"
_COLUMNS = (
    Column("kind", cut=middle),
    Column("per"),
    Column("concurrency", "at once"),
    Column("rate"),
    Column("declared_concurrency", "(declared)"),
    Column("declared_rate", "(declared)"),
    Column("set_at", "set"),
    Column("set_by", "by", cut=middle),
)


@app.command()
def pause(kind: Kind, database: Database, as_json: Json = False) -> None:
    """Pause a kind: its waiting events are neither claimed nor expired. Running ones finish."""
    run(database, lambda changes, _: changes.pause(kind))
    say(f"{kind} is paused", {"kind": kind, "paused": True}, as_json=as_json)


@app.command()
def resume(kind: Kind, database: Database, as_json: Json = False) -> None:
    """Resume a kind."""
    run(database, lambda changes, _: changes.resume(kind))
    say(f"{kind} is running", {"kind": kind, "paused": False}, as_json=as_json)


@limits.command("list")
def list_limits(database: Database, as_json: Json = False) -> None:
    """List the limits that hold, and what the workers declare."""
    found = run(database, lambda changes, _: changes.list_limits())
    show_json(found) if as_json else show_table(_COLUMNS, found, empty="no kind has a limit")


@limits.command("set")
def set_limit(
    kind: Kind,
    database: Database,
    concurrency: Annotated[str | None, typer.Option(help="How many run at once, or none.")] = None,
    rate: Annotated[
        str | None, typer.Option(help="How many begin in a period, such as 60/1m, or none.")
    ] = None,
    per: Annotated[
        str | None, typer.Option(help="What has a limit of its own: kind, workspace, channel or user.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change the limit of a kind, until it is reset. What is not named stays as it is."""
    if concurrency is None and rate is None and per is None:
        raise failed("name --concurrency, --rate or --per", EXIT_USAGE)
    try:
        at_once = _count(concurrency)
        in_period = None if rate is None else Rate(0, timedelta()) if rate == NONE else parse_rate(rate)
    except ValueError as error:
        raise failed(str(error), EXIT_USAGE) from None
    run(database, lambda changes, _: changes.set_limit(kind, concurrency=at_once, rate=in_period, per=per))
    told = f"the limit of {kind} is changed; surelane limits reset {kind} takes that back"
    say(told, {"kind": kind, "changed": True}, as_json=as_json)


@limits.command("reset")
def reset_limit(kind: Kind, database: Database, as_json: Json = False) -> None:
    """Let the limit that the workers declare hold again."""
    if not run(database, lambda changes, _: changes.reset_limit(kind)):
        raise failed(f"no operator has changed the limit of {kind}", EXIT_NOT_FOUND)
    told = f"the limit of {kind} is as its workers declare it"
    say(told, {"kind": kind, "changed": False}, as_json=as_json)


def _count(text: str | None) -> int | None:
    if text is None or text == NONE:
        return None if text is None else 0
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ValueError(f"concurrency is a number above 0, or none, not {text}")
    return int(text)

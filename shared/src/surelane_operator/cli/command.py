"""The ``surelane`` command.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 the database is away, too old, or refuses the role.
"""

from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from surelane import __version__
from surelane.calls import Connection
from surelane_operator.acting import acting_as, this_user
from surelane_operator.cli import cron, events, jobs, keys, kinds, limits
from surelane_operator.cli.actions import list_actions
from surelane_operator.cli.doctor import doctor
from surelane_operator.cli.enqueue import enqueue, orchestrate
from surelane_operator.cli.erase import erase
from surelane_operator.cli.find import natural_key
from surelane_operator.cli.follow import logs, tail
from surelane_operator.cli.output import Column, middle, say, show_json, show_table, watched
from surelane_operator.cli.session import EXIT_USAGE, Database, Json, run
from surelane_operator.operations import Operations
from surelane_service.telemetry.spans import trace_id_of

app = typer.Typer(help="Operate a Surelane queue.", no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(jobs.app, name="jobs")
app.add_typer(events.app, name="events")
app.add_typer(keys.app, name="keys")
app.add_typer(kinds.app, name="kinds")
app.add_typer(limits.app, name="limits")
app.add_typer(cron.app, name="cron")
app.command()(logs)
app.command()(tail)
app.command()(enqueue)
app.command()(orchestrate)
app.command()(doctor)
app.command("actions")(list_actions)
app.command()(erase)
for _command in entry_points(group="surelane.commands"):  # surelane-dev brings some
    app.command(_command.name)(_command.load())

_KINDS = (
    Column("kind", cut=middle),
    Column("paused"),
    Column("pending"),
    Column("scheduled"),
    Column("running"),
    Column("oldest_pending", "oldest"),
)
_WORKERS = (
    Column("name", "worker", cut=middle),
    Column("state"),
    Column("version"),
    Column("started_at", "started"),
    Column("seen_at", "seen"),
    Column("died_at", "died"),
)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Option(
            "--as", envvar="SURELANE_AS", help="The name to keep changes under. Default: your user and host."
        ),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Operate a Surelane queue."""
    if version:
        typer.echo(f"surelane {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(EXIT_USAGE)
    context.with_resource(acting_as(name or this_user(), "command"))


@app.command()
def stats(
    database: Database,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option(help="Print it again every two seconds.")] = False,
) -> None:
    """Count events by kind and state, and list the workers."""

    async def work(
        operations: Operations, _: Connection
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return await operations.stats(), await operations.workers()

    def show() -> None:
        by_kind, workers = run(database, work)
        if as_json:
            show_json({"kinds": by_kind, "workers": workers})
            return
        show_table(_KINDS, by_kind, empty="no event was ever stored")
        typer.echo()
        show_table(_WORKERS, workers, empty="no worker is running", note="kinds")

    watched(show, watch=watch)


@app.command()
def trace(
    key: Annotated[str, typer.Argument(help="Slack's event_id, another natural key, or the event's id.")],
    url: Annotated[
        str | None,
        typer.Option(envvar="SURELANE_TRACE_URL", help="A URL with {trace_id} in it, to print a link."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the id of an event's trace, computed from its key alone, and a link to it."""
    trace_id = f"{trace_id_of(natural_key(key)):032x}"
    link = url.replace("{trace_id}", trace_id) if url else None
    say(
        "\n".join(part for part in (trace_id, link) if part),
        {"trace_id": trace_id, "url": link},
        as_json=as_json,
    )

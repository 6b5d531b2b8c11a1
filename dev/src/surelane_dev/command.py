"""Define the commands that surelane-dev adds to ``surelane``.

The command loads this module at each start, so it imports the rest of the package only where a command runs.
"""

from pathlib import Path
from typing import Annotated

import typer


def dev(
    *,
    socket_mode: Annotated[
        bool, typer.Option("--socket-mode", help="Connect ingest to the simulator by Socket Mode.")
    ] = False,
    installs: Annotated[
        bool,
        typer.Option("--installs", help="Let each of the simulator's workspaces install the app by OAuth."),
    ] = False,
    processes: Annotated[
        bool, typer.Option("--processes", help="Run each service as a process of its own, as in production.")
    ] = False,
) -> None:
    """Run the whole system here until Ctrl-C: PostgreSQL, ingest, a worker, a Slack simulator.

    The handlers are those of [tool.surelane] in pyproject.toml, or of SURELANE_HANDLERS; a save reloads them.
    """
    print("Surelane starts here: PostgreSQL, the services, a Slack simulator. Ctrl-C ends it.", flush=True)
    from surelane_dev.system import main  # noqa: PLC0415

    raise typer.Exit(main(socket_mode=socket_mode, installs=installs, processes=processes))


def new(
    directory: Annotated[Path, typer.Argument(help="The new directory. Its name becomes the bot's name.")],
    *,
    agent: Annotated[bool, typer.Option("--agent", help="Write an agent: a model with tools.")] = False,
    bolt: Annotated[bool, typer.Option("--bolt", help="Write an app of Bolt for Python.")] = False,
) -> None:
    """Write a new project: handlers, a test, and the files to deploy it."""
    from surelane.errors import SurelaneError  # noqa: PLC0415
    from surelane_dev.new import write_project  # noqa: PLC0415

    if agent and bolt:
        raise typer.BadParameter("choose one of --agent and --bolt")
    try:
        lines = write_project(directory, "agent" if agent else "bolt" if bolt else "")
    except SurelaneError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    for line in lines:
        typer.echo(line)

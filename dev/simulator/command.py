"""``python -m dev.simulator``: serve a simulated Slack, say something in it, put load on it."""

import asyncio

import typer

from dev.simulator.settings import SimulatorSettings
from surelane import lifecycle
from surelane.logs import configure_logs
from surelane.settings import load_settings

app = typer.Typer(
    help="A Slack to develop and test against.",
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _default(context: typer.Context) -> None:
    """Without a command, serves."""
    if context.invoked_subcommand is None:
        serve()


@app.command()
def serve() -> None:
    """Serve the page, Slack's Web API and the event sender until told to stop."""

    async def main(stop: asyncio.Event) -> None:
        from dev.simulator import server  # noqa: PLC0415 - `send` starts faster without it

        settings = load_settings(SimulatorSettings)
        configure_logs("surelane-simulator", settings.log_level)
        await server.main(settings, stop)

    raise typer.Exit(lifecycle.run(main))

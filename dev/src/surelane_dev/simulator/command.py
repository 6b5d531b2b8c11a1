"""Define the command ``python -m surelane_dev.simulator``: serve a simulated Slack, write to it, put load on it."""

import asyncio
import os
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import typer

from surelane.errors import SurelaneError
from surelane_dev.simulator.client import SimulatorClient
from surelane_dev.simulator.load import Summary, run_load
from surelane_dev.simulator.workspace.model import JSON
from surelane_service import lifecycle

app = typer.Typer(
    help="Simulate Slack for development and tests.", add_completion=False, rich_markup_mode=None
)

Result = TypeVar("Result")
Url = Annotated[
    str | None,
    typer.Option(
        envvar="SURELANE_SIMULATOR_URL", help="The running simulator's URL; by default this machine's."
    ),
]
Channel = Annotated[str, typer.Option(help="A channel's name or id.")]
User = Annotated[
    str | None,
    typer.Option(help="The writer: ada, grace or katherine. By default the workspace's first person."),
]
Team = Annotated[str | None, typer.Option(help="A workspace's id. By default the demo workspace.")]


@app.callback(invoke_without_command=True)
def _default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        serve()


@app.command()
def serve() -> None:
    """Serve the page, Slack's Web API and the event sender until a signal. The default."""

    from surelane_dev.simulator.server import main  # noqa: PLC0415 - the other commands start faster without it

    raise typer.Exit(lifecycle.run(main))


@app.command()
def send(
    text: Annotated[str, typer.Argument(help="The message; @name mentions, a leading / calls a command.")],
    channel: Channel = "general",
    thread: Annotated[str | None, typer.Option(help="Reply in the thread of this ts.")] = None,
    user: User = None,
    team: Team = None,
    url: Url = None,
    mention: Annotated[bool, typer.Option(help="Mention the bot if the text does not.")] = True,
    wait: Annotated[bool, typer.Option(help="Wait for the bot's reply and print it.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the reply.")] = 60,
) -> None:
    """Write a message. Print the ids of its events and, with --wait, the bot's reply.

    Of a command, print its trigger id and the app's answer.
    """
    me = text.startswith("/me ")
    if text.startswith("/") and not me:
        _run(_command(_address(url), team, text, channel, user))
        return
    said: JSON = {"channel": channel, "thread_ts": thread, "user": user, "mention": mention, "me": me}
    _run(_send(_address(url), team, text.removeprefix("/me "), said, timeout if wait else None))


@app.command()
def load(
    rate: Annotated[float, typer.Option(min=0.1, max=1000, help="Messages a second.")] = 20,
    seconds: Annotated[float, typer.Option(min=0.1, help="For how long.")] = 10,
    channel: Channel = "load-test",
    team: Team = None,
    url: Url = None,
    replies: Annotated[bool, typer.Option(help="Wait for the bot's replies as well.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for each reply.")] = 60,
) -> None:
    """Write messages at a steady rate, and sum up ingest's answers. Exit code 1 if one was not acknowledged."""
    summary = _run(_load(_address(url), team, rate, seconds, channel, timeout if replies else None))
    for line in summary.lines():
        print(line)
    if summary.acknowledged < summary.sent or (replies and summary.replies < summary.sent):
        raise typer.Exit(1)


async def _send(url: str, team: str | None, text: str, said: JSON, timeout: float | None) -> None:
    async with SimulatorClient(url, team) as client:
        answer = await client.say(text, **said)
        for event in answer["events"]:
            print(event["id"])
        if not answer["events"]:
            raise SurelaneError("the message was written, but makes no event that the app is subscribed to")
        if timeout is not None:
            reply = await client.reply(answer["message"], timeout)
            print(reply["text"])


async def _command(url: str, team: str | None, text: str, channel: str, user: str | None) -> None:
    command, _, rest = text.partition(" ")
    async with SimulatorClient(url, team) as client:
        body = {"command": command, "text": rest, "channel": channel, "user": user}
        answer = await client.request("POST", "/control/commands", body)
    if answer["problem"]:
        raise SurelaneError(f"{command} was not taken: {answer['problem']} {answer['status'] or ''}".rstrip())
    print(answer["trigger_id"])
    if answer["message"]:
        print(answer["message"]["text"])


async def _load(
    url: str, team: str | None, rate: float, seconds: float, channel: str, reply_timeout: float | None
) -> Summary:
    def progress(summary: Summary) -> None:
        typer.echo(f"sent {summary.sent}, acknowledged {summary.acknowledged}", err=True)

    async with SimulatorClient(url, team) as client:
        return await run_load(client, rate, seconds, channel, reply_timeout, progress)


def _address(url: str | None) -> str:
    return url or f"http://127.0.0.1:{os.environ.get('SURELANE_SIMULATOR_PORT') or '8090'}"


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    try:
        return asyncio.run(work)
    except* SurelaneError as group:
        typer.echo(_first(group), err=True)
        code = 1
    raise typer.Exit(code)


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error

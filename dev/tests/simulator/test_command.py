"""``python -m surelane_dev.simulator`` runs as a process, and its commands work with a running simulator."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from typer.testing import CliRunner, Result

from surelane_dev.simulator.command import app
from tests.processes import free_port, service
from tests.system.slack_app import Answer, Pair

WEST = "T0ACMEWEST"


async def run(*arguments: str) -> Result:
    """Run a command in a thread, because it has an event loop of its own."""
    return await asyncio.to_thread(lambda: CliRunner().invoke(app, arguments))


async def send(pair: Pair, *arguments: str) -> tuple[int, list[str], str]:
    """Send a message or command; return the exit code, the lines that it printed, and its errors."""
    result = await run("send", *arguments, "--url", pair.url)
    return result.exit_code, result.stdout.splitlines(), result.stderr


async def answer_each(pair: Pair) -> None:
    """Answer every event in its thread, as a bot would."""
    answered = 0
    while True:
        for envelope in pair.app.events[answered:]:
            event = envelope["event"]
            await pair.web.chat_postMessage(channel=event["channel"], thread_ts=event["ts"], text="an answer")
            answered += 1
        await asyncio.sleep(0.02)


@pytest.fixture
async def answered(pair: Pair) -> AsyncIterator[Pair]:
    """Run a simulator whose app answers."""
    bot = asyncio.create_task(answer_each(pair))
    yield pair
    bot.cancel()
    with suppress(asyncio.CancelledError):
        await bot


async def test_send_prints_the_events_id_and_waits_for_the_reply(answered: Pair) -> None:
    code, lines, _ = await send(answered, "hello", "--wait")
    (request,) = await answered.app.arrive(1)
    assert (code, lines) == (0, [request.envelope["event_id"], "an answer"])
    assert request.envelope["event"]["text"] == "<@U0SURELANE> hello"


async def test_send_writes_in_another_workspace_and_in_a_thread_as_somebody_else(pair: Pair) -> None:
    first = await pair.said(channel="support")
    where = ("--channel", "support", "--thread", first["ts"], "--user", "grace")
    assert (await send(pair, "me too", *where))[0] == 0
    event = (await pair.app.arrive(2))[1].envelope["event"]
    assert (event["user"], event["thread_ts"], event["channel"]) == ("U0GRACE001", first["ts"], "C0SUPPORT1")
    code, _, errors = await send(pair, "hello", "--team", WEST, "--user", "emma")
    assert (code, "makes no event" in errors) == (1, True)  # it does not have the app
    found = await pair.control.request("GET", f"/control/workspaces/{WEST}/messages")
    assert [each["user"] for each in found["messages"]] == ["U2ACMEWEST"]


async def test_send_calls_a_command_and_says_what_is_wrong(pair: Pair) -> None:
    pair.app.answer({"text": "deploying"})
    code, lines, _ = await send(pair, "/deploy web now")
    assert (code, lines[1:]) == (0, ["deploying"])
    (request,) = pair.app.received
    assert b"command=%2Fdeploy&text=web+now" in request.body
    pair.app.answers.append(Answer(503))
    code, _, errors = await send(pair, "/deploy")
    assert (code, "http_error 503" in errors) == (1, True)
    for options, message in (
        (("--channel", "nowhere"), "no channel nowhere"),
        (("--no-mention",), "makes no event"),
        (("--channel", "lounge"), "makes no event"),
        (("--wait", "--timeout", "0.2"), "no reply within 0.2 s"),
        (("--url", f"http://127.0.0.1:{free_port()}"), "no simulator answers at"),
    ):
        result = await run("send", "hello", "--url", pair.url, *options)
        assert (result.exit_code, message in result.stderr) == (1, True), message


async def test_load_sums_up_the_answers_and_the_replies(answered: Pair) -> None:
    result = await run("load", "--rate", "50", "--seconds", "0.5", "--replies", "--url", answered.url)
    assert result.exit_code == 0, result.output
    for told in ("sent 25", "first answers: 25 of 200", "replies: 25"):
        assert told in result.stdout
    assert "acknowledged" in result.stderr


async def test_load_fails_where_an_event_was_not_acknowledged_or_the_app_is_missing(pair: Pair) -> None:
    pair.app.answers.append(Answer(503))
    load = ("load", "--rate", "10", "--seconds", "0.3", "--url", pair.url)
    result = await run(*load)
    assert (result.exit_code, "2 of 200, 1 of 503" in result.stdout) == (1, True)
    result = await run(*load, "--channel", "general", "--team", WEST)
    assert (result.exit_code, "first answers: none" in result.stdout) == (1, True)
    found = await pair.control.request("GET", f"/control/workspaces/{WEST}/messages")
    assert sorted(each["text"][-6:] for each in found["messages"]) == ["load 0", "load 1", "load 2"]


async def test_it_runs_as_a_process_ends_on_sigterm_and_names_a_port_that_is_taken() -> None:
    port = free_port()
    url, env = f"http://127.0.0.1:{port}", {"SURELANE_SIMULATOR_PORT": str(port)}
    async with service("surelane_dev.simulator", env, ready=f"{url}/livez", ready_within=300) as running:
        assert (await run("send", "hello", "--url", url)).exit_code == 0
    assert any("simulated Slack is ready" in line for line in running.output)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"SURELANE_SIMULATOR_PORT": str(port)}
        async with service("surelane_dev.simulator", env, ready="") as refused:
            assert await refused.child.wait() == 2
    shown = "\n".join(refused.output)
    assert f"cannot listen on 127.0.0.1:{port}" in shown
    assert "SURELANE_SIMULATOR_PORT" in shown

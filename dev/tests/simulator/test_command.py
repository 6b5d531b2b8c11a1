"""``python -m surelane_dev.simulator`` runs as a process, and its commands work with a running simulator."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from typer.testing import CliRunner, Result

from surelane_dev.simulator.command import app
from tests.processes import free_port, service
from tests.system.slack_app import Answer, Pair, simulated


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with simulated() as running:
        yield running


async def run(*arguments: str) -> Result:
    """Run a command in a thread, because it has an event loop of its own."""
    return await asyncio.to_thread(lambda: CliRunner().invoke(app, arguments))


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


async def test_send_prints_the_events_id(pair: Pair) -> None:
    result = await run("send", "hello", "--url", pair.url)
    (request,) = await pair.app.arrive(1)
    assert (result.exit_code, result.stdout.split()) == (0, [request.envelope["event_id"]])
    assert request.envelope["event"]["text"] == "<@U0SURELANE> hello"


async def test_send_waits_for_the_reply(answered: Pair) -> None:
    result = await run("send", "hello", "--url", answered.url, "--wait")
    assert (result.exit_code, result.stdout.splitlines()[1:]) == (0, ["an answer"])


async def test_send_writes_in_another_workspace(pair: Pair) -> None:
    result = await run("send", "hello", "--url", pair.url, "--team", "T0ACMEWEST", "--user", "emma")
    assert (result.exit_code, "makes no event" in result.stderr) == (1, True)  # it does not have the app
    found = await pair.control.request("GET", "/control/workspaces/T0ACMEWEST/messages")
    assert [each["user"] for each in found["messages"]] == ["U2ACMEWEST"]


async def test_send_says_when_no_reply_comes(pair: Pair) -> None:
    result = await run("send", "hello", "--url", pair.url, "--wait", "--timeout", "0.2")
    assert (result.exit_code, "no reply within 0.2 s" in result.stderr) == (1, True)


async def test_send_in_a_thread_as_somebody_else(pair: Pair) -> None:
    first = await pair.said(channel="support")
    arguments = ("--channel", "support", "--thread", first["ts"], "--user", "grace", "--url", pair.url)
    assert (await run("send", "me too", *arguments)).exit_code == 0
    event = (await pair.app.arrive(2))[1].envelope["event"]
    assert (event["user"], event["thread_ts"], event["channel"]) == ("U0GRACE001", first["ts"], "C0SUPPORT1")


async def test_send_calls_a_command(pair: Pair) -> None:
    pair.app.answer({"text": "deploying"})
    sent = await run("send", "/deploy web now", "--url", pair.url)
    assert (sent.exit_code, sent.stdout.splitlines()[1:]) == (0, ["deploying"])
    (request,) = pair.app.received
    assert b"command=%2Fdeploy&text=web+now" in request.body
    pair.app.answers.append(Answer(503))
    refused = await run("send", "/deploy", "--url", pair.url)
    assert (refused.exit_code, "http_error 503" in refused.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("hello", "--channel", "nowhere"), "no channel nowhere"),
        (("hello", "--no-mention"), "makes no event"),
        (("hello", "--channel", "lounge"), "makes no event"),
    ],
)
async def test_send_says_what_is_wrong(pair: Pair, arguments: tuple[str, ...], message: str) -> None:
    result = await run("send", *arguments, "--url", pair.url)
    assert (result.exit_code, message in result.stderr) == (1, True)


async def test_send_says_when_no_simulator_runs() -> None:
    result = await run("send", "hello", "--url", f"http://127.0.0.1:{free_port()}")
    assert (result.exit_code, "no simulator answers at" in result.stderr) == (1, True)


async def test_load_sums_up_the_answers_and_the_replies(answered: Pair) -> None:
    result = await run("load", "--rate", "50", "--seconds", "0.5", "--replies", "--url", answered.url)
    assert result.exit_code == 0, result.output
    assert "sent 25" in result.stdout
    assert "first answers: 25 of 200" in result.stdout
    assert "replies: 25" in result.stdout
    assert "acknowledged" in result.stderr


async def test_load_fails_where_an_event_was_not_acknowledged(pair: Pair) -> None:
    pair.app.answers.append(Answer(503))
    result = await run("load", "--rate", "10", "--seconds", "0.3", "--url", pair.url)
    assert (result.exit_code, "2 of 200, 1 of 503" in result.stdout) == (1, True)


async def test_load_writes_in_another_workspace(pair: Pair) -> None:
    arguments = ("--rate", "10", "--seconds", "0.3", "--channel", "general", "--team", "T0ACMEWEST")
    result = await run("load", *arguments, "--url", pair.url)
    assert (result.exit_code, "first answers: none" in result.stdout) == (1, True)  # it does not have the app
    found = await pair.control.request("GET", "/control/workspaces/T0ACMEWEST/messages")
    assert sorted(each["text"][-6:] for each in found["messages"]) == ["load 0", "load 1", "load 2"]


async def test_it_runs_as_a_process_and_ends_on_sigterm() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with service(
        "surelane_dev.simulator", {"SURELANE_SIMULATOR_PORT": str(port)}, ready=f"{url}/livez"
    ) as running:
        assert (await run("send", "hello", "--url", url)).exit_code == 0
    assert any("simulated Slack is ready" in line for line in running.output)


async def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with service(
            "surelane_dev.simulator", {"SURELANE_SIMULATOR_PORT": str(port)}, ready=""
        ) as running:
            assert await running.child.wait() == 2
    assert f"cannot listen on 127.0.0.1:{port}" in "\n".join(running.output)
    assert "SURELANE_SIMULATOR_PORT" in "\n".join(running.output)

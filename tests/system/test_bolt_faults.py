"""A Bolt app's listeners fail, die and lose their claims: all of them run to the end, and no message is repeated."""

import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from surelane_dev.simulator.posting.payloads import command_form
from surelane_dev.simulator.workspace.model import Message
from tests.processes import until
from tests.system.bolt import Bolt, bolt, bolt_worker
from tests.system.slack_stand import fault
from tests.system.test_leasing import LEASE


@pytest.fixture(params=["asynchronous", "synchronous"], scope="module")
def name(request: pytest.FixtureRequest) -> str:
    app: str = request.param
    return f"tests.system.bolt_apps.{app}:app"


def started(database: str, name: str, folder: Path, **settings: str) -> AbstractAsyncContextManager[Bolt]:
    return bolt(database, name, SURELANE_TEST_FOLDER=str(folder), SURELANE_LEASE=LEASE, **settings)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp(name.replace(":", "."))


@pytest.fixture(scope="module")
async def app(shared_database: str, name: str, folder: Path) -> AsyncIterator[Bolt]:
    async with started(shared_database, name, folder) as running:
        yield running


@pytest.fixture(autouse=True)
def no_marks(folder: Path) -> None:
    """Let everything fail again."""
    for mark in folder.iterdir():
        mark.unlink()


async def mention(app: Bolt, text: str, attempts: int) -> tuple[list[str], Message]:
    """Mention the app, and return its answers."""
    identity, message = await app.slack.mention(text)
    await app.completed(identity, attempts)
    return app.slack.answers(message), message


def _posted(app: Bolt, message: Message) -> str:
    return app.slack.simulator.workspace.channels[message.channel].replies(message.ts)[0].ts


@pytest.mark.parametrize("text", ["fail-between", "fail-last", "fail-between fail-last"])
async def test_retried_listener_repeats_no_message(app: Bolt, text: str) -> None:
    answers, message = await mention(app, text, 1 + len(text.split()))
    assert answers == ["first answer", f"after {_posted(app, message)}", "by the app"]


async def test_call_that_an_earlier_attempt_made_succeeds_again(app: Bolt) -> None:
    """Slack answers `already_reacted`. Slack's own samples then post a warning, and leave the message unanswered."""
    answers, message = await mention(app, "react fail-between", 2)
    assert answers == ["first answer", f"after {_posted(app, message)}", "by the app"]


async def test_client_that_a_listener_makes_reaches_the_simulator(app: Bolt) -> None:
    assert (await mention(app, "alone", 1))[0] == ["by a client of its own"]


async def test_query_takes_any_value(app: Bolt) -> None:
    assert (await mention(app, "odd", 1))[0][0] == "first answer"


async def test_call_that_was_made_twice_fails_in_the_first_attempt(app: Bolt) -> None:
    assert (await mention(app, "react react", 1))[0] == ["warning: already_reacted"]


async def test_message_whose_answer_was_lost_is_found(app: Bolt) -> None:
    app.slack.simulator.faults.add(fault("answer_lost", methods=["chat.postMessage"]))
    answers, message = await mention(app, "hello", 1)
    assert answers == ["first answer", f"after {_posted(app, message)}", "by the app"]


async def test_own_error_handler_runs_and_the_attempt_fails_all_the_same(app: Bolt) -> None:
    answers, message = await mention(app, "sorry fail-between", 2)
    assert answers == ["first answer", "sorry: between", f"after {_posted(app, message)}", "by the app"]


async def test_failed_lazy_listener_is_retried(app: Bolt, folder: Path) -> None:
    for where in ("one", "two", "listener"):
        reaction = f"fail-{where}"
        item = {"type": "message", "channel": _general(app), "ts": "1700000000.000100"}
        event = {"type": "reaction_removed", "user": app.ada.id, "reaction": reaction, "item": item}
        row = await app.completed(await app.happens(event), 2)
        assert f'"message": "{where}"' in row["errors"]
        assert {(folder / f"{part} {reaction}").exists() for part in ("listener", "one", "two")} == {True}
        assert sorted(text for text in app.said() if reaction in text) == [
            f"one {reaction}",
            f"two {reaction}",
        ]


async def test_view_is_not_opened_again(app: Bolt) -> None:
    interactions = app.slack.simulator.interactions
    shortcut = {
        "type": "shortcut",
        "callback_id": "open",
        "team": {"id": app.slack.simulator.workspace.team_id},
        "trigger_id": interactions.new_trigger(app.ada.id),
        "user": {"id": app.ada.id},
    }
    assert await app.asks(shortcut, 2) is None
    (opened,) = [view.id for view in interactions.views.values()]
    assert app.whispered()[-1] == f"opened {opened}"
    assert [call["method"] for call in app.slack.simulator.api.calls].count("views.open") == 1


async def test_response_is_not_repeated(app: Bolt) -> None:
    workspace = app.slack.simulator.workspace
    general = workspace.channel("general")
    assert general is not None
    form = command_form(
        workspace,
        app.slack.simulator.interactions,
        command="/work",
        text="fail-between",
        channel=general,
        user=app.ada,
    )
    before = len(app.said())
    assert await app.asks(dict(form), 2) == "working"
    assert app.said()[before:] == ["first response", "second response"]


async def test_command_that_no_listener_takes_is_refused(app: Bolt) -> None:
    """Slack tells the person that it failed, as for Bolt alone."""
    form = {"command": "/nobody", "trigger_id": "1.1.x", "team_id": app.slack.simulator.workspace.team_id}
    assert await app.asks(dict(form)) is False


async def test_answer_that_came_too_late_goes_through_the_response_url(app: Bolt) -> None:
    workspace = app.slack.simulator.workspace
    general = workspace.channel("general")
    assert general is not None
    form = command_form(
        workspace, app.slack.simulator.interactions, command="/work", text="", channel=general, user=app.ada
    )
    before = len(app.said())
    await app.completed(await app.inserts(dict(form)))
    assert app.said()[before:] == ["working", "first response", "second response"]


async def test_refused_token_does_not_lose_the_event(database: str, name: str, tmp_path: Path) -> None:
    """Bolt acknowledges an event when auth.test fails."""
    async with started(database, name, tmp_path) as app:
        app.slack.simulator.faults.add(fault("invalid_auth", methods=["auth.test"]))
        identity, message = await app.slack.mention("hello")
        row = await app.completed(
            identity, 2 if "asynchronous" in name else 1
        )  # an App has its answer since its start
        assert len(app.slack.answers(message)) == 3
        assert "asynchronous" not in name or "NotAuthorizedError" in row["errors"]


@pytest.mark.parametrize(("where", "answers"), [("within", 1), ("last", 1)])
async def test_stream_of_a_failed_attempt_is_not_left_behind(app: Bolt, where: str, answers: int) -> None:
    said, _ = await mention(app, f"stream fail-{where}", 2)
    assert (len(said), said[0].strip()[-3:]) == (answers, "end")


async def test_stream_of_a_worker_killed_while_it_began_is_not_left_behind(
    database: str, name: str, tmp_path: Path
) -> None:
    async with started(database, name, tmp_path) as app:
        app.slack.simulator.faults.add(fault("slow", methods=["chat.startStream"], delay=600))
        identity, message = await app.slack.mention("stream")
        await until(lambda: app.slack.answers(message), what="the stream")
        app.worker.process.kill()
        await until(lambda: app.worker.child.exit_code is not None, what="the worker's death")
        async with bolt_worker(database, app.slack, name, SURELANE_TEST_FOLDER=str(tmp_path)):
            await app.completed(identity, 2)
        (answer,) = app.slack.answers(message)
        assert answer.strip()[-3:] == "end"


async def test_killed_worker_loses_and_repeats_nothing(database: str, name: str, tmp_path: Path) -> None:
    async with started(database, name, tmp_path) as app:
        identity, message = await app.slack.mention("die-between")
        await until(lambda: app.worker.child.exit_code is not None, what="the worker's death")
        async with bolt_worker(database, app.slack, name, SURELANE_TEST_FOLDER=str(tmp_path)):
            await app.completed(identity, 2)
        assert app.slack.answers(message) == [
            "first answer",
            f"after {_posted(app, message)}",
            "by the app",
        ]


async def test_worker_that_stood_still_while_another_took_over_says_nothing_more(
    database: str, name: str, tmp_path: Path
) -> None:
    async with started(database, name, tmp_path) as app:
        identity, message = await app.slack.mention("wait-between")
        await until(lambda: app.slack.answers(message), what="the first answer")
        app.worker.process.send_signal(signal.SIGSTOP)
        (tmp_path / "go").touch()
        settings = {"SURELANE_TEST_FOLDER": str(tmp_path), "SURELANE_LEASE": LEASE}
        async with bolt_worker(database, app.slack, name, **settings):
            await app.completed(identity, 2)
        app.worker.process.send_signal(signal.SIGCONT)
        await until(lambda: any("lease lost" in line for line in app.worker.output), what="the loss")
    assert [call["method"] for call in app.slack.simulator.api.calls].count("reactions.add") == 1
    assert app.slack.answers(message) == ["first answer", f"after {_posted(app, message)}", "by the app"]


def _general(app: Bolt) -> Any:
    general = app.slack.simulator.workspace.channel("general")
    assert general is not None
    return general.id

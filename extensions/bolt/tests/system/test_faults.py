"""A Bolt app's listeners fail, die and lose their claims: all of them run to the end, and no message is repeated."""

import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from extensions.bolt.tests.system.bolt import Bolt, bolt, bolt_worker
from surelane_dev.simulator.workspace.model import Message
from tests.processes import until
from tests.system.worker import LEASE


@pytest.fixture(params=["asynchronous", "synchronous"], scope="module")
def name(request: pytest.FixtureRequest) -> str:
    app: str = request.param
    return f"extensions.bolt.tests.system.apps.{app}:app"


def started(database: str, name: str, folder: Path, **settings: str) -> AbstractAsyncContextManager[Bolt]:
    return bolt(database, name, SURELANE_TEST_FOLDER=str(folder), **settings)


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
    return app.slack.replies(message)[0].ts


@pytest.mark.parametrize(
    "text", ["fail-between", "fail-last", "fail-between fail-last", "react fail-between"]
)
async def test_retried_listener_repeats_no_message(app: Bolt, text: str) -> None:
    """Slack answers `already_reacted` the second time. Slack's samples then leave the message unanswered."""
    answers, message = await mention(app, text, 1 + text.count("fail-"))
    assert answers == ["first answer", f"after {_posted(app, message)}", "by the app"]


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("alone", ["by a client of its own"]),
        ("odd", None),  # a query takes any value
        ("react react", ["warning: already_reacted"]),
    ],
)
async def test_first_attempt_sees_what_slack_answers(app: Bolt, text: str, answers: list[str] | None) -> None:
    found, message = await mention(app, text, 1)
    assert found == (answers or ["first answer", f"after {_posted(app, message)}", "by the app"])


async def test_message_whose_answer_was_lost_is_found(app: Bolt) -> None:
    app.slack.fail("answer_lost", "chat.postMessage")
    answers, message = await mention(app, "hello", 1)
    assert answers == ["first answer", f"after {_posted(app, message)}", "by the app"]


async def test_own_error_handler_runs_and_the_attempt_fails_all_the_same(app: Bolt) -> None:
    answers, message = await mention(app, "sorry fail-between", 2)
    assert answers == ["first answer", "sorry: between", f"after {_posted(app, message)}", "by the app"]


async def removed(app: Bolt, reaction: str) -> int:
    """Let Ada remove a reaction, which has two lazy listeners. Return the event's id."""
    item = {"type": "message", "channel": app.slack.room().id, "ts": "1700000000.000100"}
    event = {"type": "reaction_removed", "user": app.slack.user().id, "reaction": reaction, "item": item}
    return await app.happens(event)


async def test_failed_lazy_listener_is_retried(app: Bolt, folder: Path) -> None:
    for where in ("one", "two", "listener"):
        reaction = f"fail-{where}"
        row = await app.completed(await removed(app, reaction), 2)
        assert f'"message": "{where}"' in row["errors"]
        assert {(folder / f"{part} {reaction}").exists() for part in ("listener", "one", "two")} == {True}
        said = sorted(text for text in app.said() if reaction in text)
        assert said == [f"one {reaction}", f"two {reaction}"]


async def test_view_is_not_opened_again(app: Bolt) -> None:
    assert await app.asks(app.slack.shortcut("open"), 2) is None
    (opened,) = [view.id for view in app.slack.simulator.interactions.views.values()]
    assert app.whispered()[-1] == f"opened {opened}"
    assert app.slack.calls("views.open") == ["views.open"]


async def test_a_commands_answers_are_not_repeated_and_come_late_by_the_response_url_unless_none_takes_it(
    app: Bolt,
) -> None:
    """Slack tells the person that a command failed that no listener takes, as for Bolt alone."""
    before = len(app.said())
    assert await app.asks(app.slack.command("/work", "fail-between"), 2) == "working"
    assert app.said()[before:] == ["first response", "second response"]
    await app.completed(await app.slack.store(app.slack.command("/work")))
    assert app.said()[before + 2 :] == ["working", "first response", "second response"]
    assert await app.asks(app.slack.command("/nobody")) is False


async def test_refused_token_does_not_lose_the_event(database: str, name: str, tmp_path: Path) -> None:
    """Bolt acknowledges an event when auth.test fails. An App has its answer since its start."""
    async with started(database, name, tmp_path) as app:
        app.slack.fail("invalid_auth", "auth.test")
        identity, message = await app.slack.mention("hello")
        row = await app.completed(identity, 2 if "asynchronous" in name else 1)
        assert len(app.slack.answers(message)) == 3
        assert "asynchronous" not in name or "NotAuthorizedError" in row["errors"]


@pytest.mark.parametrize("where", ["within", "last"])
async def test_stream_of_a_failed_attempt_is_not_left_behind(app: Bolt, where: str) -> None:
    (said,), _ = await mention(app, f"stream fail-{where}", 2)
    assert said.strip()[-3:] == "end"


async def test_killed_worker_loses_and_repeats_nothing(database: str, name: str, tmp_path: Path) -> None:
    """It dies in a listener, in a lazy one, and by a kill while a stream begins."""
    given: Any = {"SURELANE_TEST_FOLDER": str(tmp_path), "SURELANE_SESSION_GRACE": "200ms"}
    again = partial(bolt_worker, database, app=name, **given)
    async with started(database, name, tmp_path) as app:
        identity, message = await app.slack.mention("die-between")
        await app.worker.child.wait()
        async with again(slack=app.slack) as second:
            await app.completed(identity, 2)
            lazy = await removed(app, "die-two")
            await second.child.wait()
        async with again(slack=app.slack) as third:
            await app.completed(lazy, 2)
            app.slack.fail("slow", "chat.startStream", delay=600)
            streamed, asked = await app.slack.mention("stream")
            await until(lambda: app.slack.answers(asked), what="the stream")
            third.child.kill()
            await third.child.wait()
        async with again(slack=app.slack):
            await app.completed(streamed, 2)
        assert app.slack.answers(message) == ["first answer", f"after {_posted(app, message)}", "by the app"]
        assert {(tmp_path / f"{part} die-two").exists() for part in ("listener", "one", "two")} == {True}
        assert sorted(text for text in app.said() if "die-two" in text) == ["one die-two", "two die-two"]
        (answer,) = app.slack.answers(asked)
        assert answer.strip()[-3:] == "end"


async def test_worker_that_stood_still_while_another_took_over_says_nothing_more(
    database: str, name: str, tmp_path: Path
) -> None:
    async with started(database, name, tmp_path, SURELANE_LEASE=LEASE) as app:
        identity, message = await app.slack.mention("wait-between")
        await until(lambda: app.slack.answers(message), what="the first answer")
        app.worker.process.send_signal(signal.SIGSTOP)
        (tmp_path / "go").touch()
        settings = {"SURELANE_TEST_FOLDER": str(tmp_path), "SURELANE_LEASE": LEASE}
        async with bolt_worker(database, app.slack, name, **settings):
            await app.completed(identity, 2)
        app.worker.process.send_signal(signal.SIGCONT)
        await until(lambda: any("lease lost" in line for line in app.worker.output), what="the loss")
    assert app.slack.calls("reactions.add") == ["reactions.add"]
    assert app.slack.answers(message) == ["first answer", f"after {_posted(app, message)}", "by the app"]

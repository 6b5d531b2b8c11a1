"""A handler's progress is written seldom, in order, and to its end."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from surelane.errors import DatabaseUnavailable
from surelane_service.engine import Settled
from surelane_service.logs import get_logger
from surelane_worker.handling import attempt as attempts
from surelane_worker.handling.attempt import Attempt, Progress
from surelane_worker.handling.outcomes import Suspend
from surelane_worker.slack.notes import ClaimLostError


class Fence:
    """Stands for the fence of an event: it keeps what was written, and answers when a test lets it."""

    def __init__(self) -> None:
        self.engine = self
        self.log = get_logger("test")
        self.written: list[str] = []
        self.wrote = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.fails_with: type[BaseException] | None = None

    async def send(self, statement: Any, *given: Any) -> None:
        await statement(1, 1, *given)
        await self.open.wait()
        if self.fails_with is not None:
            raise self.fails_with

    async def store_progress(self, _identity: int, _claim: int, text: str) -> Settled:
        self.written.append(text)
        self.wrote.set()
        return Settled.DONE


@pytest.fixture(autouse=True)
def long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "BETWEEN", 3600)


def begun() -> tuple[Fence, Progress]:
    fence = Fence()
    return fence, Progress(cast("Any", fence))


async def test_many_texts_within_a_pause_are_two_writes_and_the_end_waits_for_one_under_way() -> None:
    fence, progress = begun()
    for number in range(100):
        progress.say(str(number))
        await asyncio.sleep(0.001)
    assert len(fence.written) == 1
    await progress.end()
    assert fence.written[1:] == ["99"]
    await progress.end()
    assert len(fence.written) == 2
    fence, progress = begun()
    fence.open.clear()
    progress.say("first")
    async with asyncio.timeout(30):
        await fence.wrote.wait()
    progress.say("last")
    end = asyncio.create_task(progress.end())
    await asyncio.sleep(0)
    assert not end.done()
    fence.open.set()
    async with asyncio.timeout(30):
        await end
    assert fence.written == ["first", "last"]


async def test_a_text_is_written_after_the_pause_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "BETWEEN", 0.01)
    fence, progress = begun()
    async with asyncio.timeout(30):
        for text in ("first", "last"):
            fence.wrote.clear()
            progress.say(text)
            await fence.wrote.wait()
    assert fence.written == ["first", "last"]


@pytest.mark.parametrize("error", [ClaimLostError, asyncio.CancelledError])
async def test_the_end_does_not_try_again_what_a_lost_claim_stopped(error: type[BaseException]) -> None:
    fence, progress = begun()
    fence.fails_with = error
    progress.say("first")
    end = asyncio.create_task(progress.end())
    done, _ = await asyncio.wait([end], timeout=30)
    end.cancel()
    assert done
    assert end.exception() is None


class AwayOnce(Fence):
    """An engine whose first call finds the database away."""

    async def store_progress(self, identity: int, claim: int, text: str) -> Settled:
        if not self.wrote.is_set():
            self.wrote.set()
            raise DatabaseUnavailable("away")
        return await super().store_progress(identity, claim, text)


async def test_the_last_text_of_a_suspended_handler_is_stored_once_the_database_is_back() -> None:
    async def stands(_work: object) -> None: ...

    engine, loop = AwayOnce(), asyncio.get_running_loop()
    services = SimpleNamespace(
        engine=engine, log=get_logger("test"), loop=loop, check_claim=stands, step_retries=None
    )
    event = SimpleNamespace(id=1, claim=1, key="1", kind="job", attempts=1, notes=None)
    attempt = Attempt(cast("Any", services), cast("Any", [event]), SimpleNamespace(stopped=None))
    attempt.progress.say("half")
    attempt.steps.flow.suspend = Suspend(())
    end = asyncio.create_task(attempt.progress.end())
    done, _ = await asyncio.wait([end], timeout=30)
    end.cancel()
    assert done
    assert engine.written == ["half"]

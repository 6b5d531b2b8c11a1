"""When a second claim goes out beside the first one."""

import asyncio
from typing import Any, cast

import pytest

from surelane.errors import DatabaseUnavailable
from surelane_worker.claiming.claimer import MANY, SecondClaims


class Connection:
    """Notes that it was closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def close(self) -> None:
        self.closed.set()

    async def retire(self, within: float) -> None:
        assert within > 0
        self.closed.set()


def second_claims() -> tuple[SecondClaims, Connection]:
    connection = Connection()
    return SecondClaims(cast("Any", connection)), connection


async def test_it_goes_out_once_a_large_claim_found_all_it_asked_for() -> None:
    second, _ = second_claims()
    for count, limit in [(MANY - 1, MANY - 1), (MANY, MANY + 1), (0, MANY)]:
        second.found(count, limit)
        assert not second.is_open
    second.found(MANY, MANY)
    assert second.is_open
    second.found(1, 1)
    assert second.is_open, "a small claim that found all says nothing"
    second.found(0, 1)
    assert not second.is_open, "the queue is empty"
    second.found(MANY + 100, MANY)
    assert second.is_open, "a group may bring more than was asked for"
    assert second.worth([(["a"], MANY), (["b"], MANY - 1)]) == [(["a"], MANY)]


async def test_after_a_failure_the_first_connection_goes_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    second, _ = second_claims()
    second.found(MANY, MANY)
    second.failed(DatabaseUnavailable("too many connections"))
    second.found(MANY, MANY)
    assert not second.is_open
    monkeypatch.setattr("surelane_worker.claiming.claimer.SECOND_PAUSE", 0.0)
    second.failed(DatabaseUnavailable("too many connections"))
    second.found(MANY, MANY)
    assert second.is_open


async def test_a_connection_without_need_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surelane_worker.claiming.claimer.IDLE", 0.001)
    second, connection = second_claims()
    wanted = asyncio.create_task(second.wanted())
    await connection.closed.wait()
    second.found(MANY, MANY)
    assert await wanted, "it is opened again at need"
    connection.closed.clear()
    await second.leave()
    assert connection.closed.is_set(), "it ends before another session begins"
    assert not second.is_open


async def test_none_goes_out_once_the_worker_stops() -> None:
    for waits in (True, False):
        second, _ = second_claims()
        wanted = asyncio.create_task(second.wanted())
        if waits:
            await asyncio.sleep(0)
        second.stop()
        assert not await wanted
        await second.leave()
        assert not await second.wanted()

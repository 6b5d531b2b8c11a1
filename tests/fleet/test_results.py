"""Durable handlers: a step whose result cannot be stored is refused before it, or is not called again."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Protocol, TypedDict

import pytest
from pydantic import Base64Bytes, BaseModel

from surelane.testing import fleet, virtual
from surelane_dev.testing.fleets.wire import Wire
from surelane_encryption.keys import new_key
from surelane_worker import Context, Event, Handlers
from surelane_worker.errors import StepError
from tests.fleet.statements import statements

SOON = {"SURELANE_SESSION_GRACE": "100ms", "SURELANE_SWEEP_INTERVAL": "1s"}


class Image:
    """A class that nothing writes as JSON."""


class Money(str):
    """A text."""

    __slots__ = ()


class Named(Protocol):
    """What any class may be."""


@dataclass
class Receipt:
    """What pydantic writes and reads."""

    number: int


class Photo(BaseModel):
    """A model that says how its bytes are written."""

    data: Base64Bytes


class Paid(TypedDict):
    """What pydantic writes and reads."""

    number: int


def returning(annotated: Any, result: object = 1, *, is_async: bool = False) -> Callable[[list[str]], Any]:
    """Return a function that notes its call, and whose result is annotated so."""

    def charge(log: list[str]) -> Any:
        log.append("charged")
        return result

    async def charge_async(log: list[str]) -> Any:
        return charge(log)

    function = charge_async if is_async else charge
    function.__annotations__["return"] = annotated
    return function


@pytest.mark.parametrize(
    ("annotated", "result", "refused"),
    [
        (bytes, b"\xff", "bytes"),
        (dict[str, list[bytes]], {}, "bytes"),
        (Image, Image(), "Image"),
        (Image | None, Image(), "Image"),
        (list[Image], [], "Image"),
        (Callable[[], int], len, "Callable"),
        (type[int], int, "type"),
        (set[int], {1}, None),
        (Receipt, Receipt(1), None),
        (list[Receipt] | None, None, None),
        (Paid, {"number": 1}, None),
        (Photo, Photo(data=b"AAAA"), None),
        (Money, Money("1"), None),
        (Named, 1, None),
        ("Unknown", 1, None),
        (Any, 1, None),
    ],
    ids=range(16),
)
@virtual
async def test_a_step_whose_annotated_result_cannot_be_stored_is_refused_before_it_runs(
    annotated: Any, result: object, refused: str | None
) -> None:
    handlers, log = Handlers(), list[str]()

    @handlers.on("program", max_attempts=1)
    async def program(event: Event, ctx: Context) -> None:
        await ctx.step("charge", partial(returning(annotated, result, **event.payload), log))

    async with fleet(handlers) as f:
        for is_async in (False, True):
            event = await f.enqueue("program", {"is_async": is_async})
            row = await f.until(event.ended)
            if refused is None:
                assert row["outcome"] == "completed", await event.errors()
            else:
                (error,) = await event.errors()
                assert error.startswith(f"StepMismatchError: step charge returns {refused}"), error
    assert len(log) == (2 if refused is None else 0)


@pytest.mark.parametrize("sort", ["set", "large", "in thread", "timeout", "cancelled"])
@virtual
async def test_a_step_whose_result_cannot_be_stored_is_not_called_again(sort: str) -> None:
    handlers, log = Handlers(), list[str]()

    def charge() -> Any:
        log.append("charged")
        if sort in ("timeout", "cancelled"):
            asyncio.run_coroutine_threadsafe(asyncio.sleep(3), f.loop).result()
        return "x" * 16_000_000 if sort == "large" else {1, 2}

    async def charge_async() -> Any:
        return charge()

    @handlers.on("program", backoff="1ms", max_attempts=9, timeout="1s" if sort == "timeout" else "1m")
    async def program(_: Event, ctx: Context) -> str:
        step = ctx.step("charge", charge_async if sort in ("set", "large") else charge, retries=3)
        try:
            if sort == "cancelled":
                async with asyncio.timeout(1):
                    await step
            await step
        except StepError as error:
            return f"{error.type}: {error.message}"
        return "charged"

    async def die(_: Wire, query: str, __: object) -> None:
        if "store_step" in query and len(died) < 3:
            died.append(query)
            await f.die()

    died = list[str]()
    async with fleet(handlers, settings=SOON) as f:
        with statements(after=die):
            result = await (await f.enqueue("program")).result()
    assert result.startswith("StepResultError: the result of step charge ")
    assert (log, len(died)) == (["charged"], 1)


@virtual
async def test_an_undo_whose_result_cannot_be_stored_is_done() -> None:
    handlers, log = Handlers(), list[str]()

    @handlers.on("program", max_attempts=1)
    async def program(_: Event, ctx: Context) -> None:
        await ctx.undo("image", returning(Image, Image()), log)
        await ctx.undo("set", returning(Any, {1, 2}), log)
        raise RuntimeError("no visa")

    async with fleet(handlers) as f:
        assert await (await f.enqueue("program")).errors() == ["RuntimeError: no visa"]
    assert log == ["charged"] * 2


@pytest.mark.parametrize("encrypted", [pytest.param(False, marks=pytest.mark.slow), True])
@virtual
async def test_a_large_result_is_kept_and_read_only_where_it_is_asked_for(encrypted: bool) -> None:
    handlers, log, large = Handlers(), list[str](), Random(1).randbytes(7_900_000).hex()
    read = list[int]()

    @handlers.on("program", backoff="1ms", max_attempts=3)
    async def program(event: Event, ctx: Context) -> None:
        for number in range(3 if event.claim < 3 else 1):
            assert await ctx.step(f"{number}", partial(returning(str, large), log)) == large
        if event.claim < 3:
            raise RuntimeError("once more")

    async def note(_: Wire, query: str, answer: Any) -> None:
        if "stored_steps" in query or "step_result" in query:
            read.append(len(str(answer)) // 1_000_000)

    keys = {"SURELANE_ENCRYPTION_KEYS": new_key(), "SURELANE_ENCRYPT_EVENTS": "true"} if encrypted else {}
    async with fleet(handlers, settings=keys) as f:
        with statements(after=note):
            await (await f.enqueue("program")).result()
    assert log == ["charged"] * 3
    assert [bool(each) for each in read] == [False, True, True, True, False, True]

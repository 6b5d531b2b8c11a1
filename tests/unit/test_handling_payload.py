# ruff: noqa: ARG001, ARG002 - a handler takes its arguments, used or not
"""A handler's third argument is the payload as its annotated type; what cannot be read is told at registration."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, cast
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from surelane.errors import InvalidInput
from surelane.jobs import Continuation, Job, job_text
from surelane_worker import Context, Event, Handlers
from surelane_worker.errors import HandlersError
from surelane_worker.handling.registry import registered_in
from surelane_worker.handling.shapes import InvalidPayloadError
from tests.unit.test_handling import NO_CONTEXT

AT = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


class Item(BaseModel):
    name: str
    price: Annotated[float, Field(gt=0)]


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: UUID
    placed: datetime
    items: list[Item]
    customer: str = Field(alias="customerName")


class Turn(TypedDict):
    text: str


@dataclass
class Task:
    at: datetime
    parts: list["Part"]


@dataclass
class Part:
    n: int


ORDER = Order(number=UUID(int=7), placed=AT, items=[Item(name="tea", price=2.5)], customerName="Ada")


def event(payload: object) -> Event:
    return Event(1, "order", AT, 1, 1, AT, json.dumps(payload))


def registered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a handler, and return what a worker calls."""
    handlers = Handlers()
    handlers.on("order")(function)
    (handler,) = registered_in(handlers).all()
    return handler.call


def test_a_job_is_written_with_the_fields_that_have_a_value() -> None:
    """The names of the others would take as long as those."""
    assert json.loads(job_text(Job("order", {"a": None}))) == {
        "kind": "order", "payload": {"a": None}, "priority": 1
    }  # fmt: skip
    text = job_text(Continuation("order", item_key="7", priority=0, run_at=AT))
    assert json.loads(text) == {
        "kind": "order",
        "payload": {},
        "item_key": "7",
        "priority": 0,
        "run_at": AT.isoformat(),
        "fails_with_children": False,
    }


def stored(payload: object) -> Event:
    """Return an event with the payload of a job, as a producer's client writes it."""
    return event(json.loads(job_text(Job("order", payload)))["payload"])


async def handle_order(event: Event, ctx: Context, payload: Order) -> Order:
    return payload


async def handle_turn(event: Event, ctx: Context, turn: Turn) -> Turn:
    return turn


async def handle_task(event: Event, ctx: Context, task: Task) -> Task:
    return task


async def handle_list(event: Event, ctx: Context, numbers: list[int]) -> list[int]:
    return numbers


class Handling:
    async def __call__(self, event: Event, ctx: Context, payload: Order) -> Order:
        return payload

    async def method(self, event: Event, ctx: Context, payload: Order) -> Order:
        return payload


async def handle_more(event: Event, ctx: Context, payload: Order, extra: int) -> Order:
    return payload


@pytest.mark.parametrize(
    ("function", "payload"),
    [
        (handle_order, ORDER),
        (handle_turn, Turn(text="hi")),
        (handle_task, Task(AT, [Part(1), Part(2)])),
        (handle_list, [1, 2]),
        (Handling(), ORDER),
        (Handling().method, ORDER),
        (partial(handle_more, extra=1), ORDER),
    ],
)
async def test_a_payload_comes_to_the_handler_as_given(function: Any, payload: object) -> None:
    assert await registered(function)(stored(payload), NO_CONTEXT) == payload


async def test_a_synchronous_handler_reads_it_in_its_thread_and_a_default_is_the_functions_own() -> None:
    def handle(event: Event, ctx: Context, payload: Order) -> tuple[Order, int]:
        return payload, threading.get_ident()

    async def with_default(event: Event, ctx: Context, n: int = 5) -> int:
        return n

    async def together(events: list[Event], ctx: Context, payload: Order) -> None: ...

    payload, thread = await registered(handle)(stored(ORDER), NO_CONTEXT)
    assert (payload, thread != threading.get_ident()) == (ORDER, True)
    assert await registered(with_default)(event({}), NO_CONTEXT) == 5
    with pytest.raises(HandlersError, match=r"must take two arguments: \(events, ctx\)$"):
        Handlers().on_group("order")(cast("Any", together))


async def test_what_does_not_fit_is_named_without_its_value() -> None:
    wrong = {"number": "secret", "placed": AT.isoformat(), "items": [{"name": "tea", "price": -1}], "more": 1}
    with pytest.raises(InvalidPayloadError) as caught:
        await registered(handle_order)(event(wrong), NO_CONTEXT)
    message = str(caught.value)
    for problem in (
        "items.0.price: Input should be greater than 0",
        "customerName: Field required",
        "more: Extra inputs are not permitted",
    ):
        assert problem in message
    assert "secret" not in message
    assert caught.value.__cause__ is None
    with pytest.raises(InvalidPayloadError, match=r"^payload: Input should be a valid array$"):
        await registered(handle_list)(event({}), NO_CONTEXT)
    with pytest.raises(InvalidPayloadError, match=r"; and 3 more$"):
        await registered(handle_list)(event(["x"] * 8), NO_CONTEXT)


def test_annotations_that_cannot_be_used_are_refused_with_the_handlers_name() -> None:
    async def unannotated(event: Event, ctx: Context, payload) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    async def unreadable(event: Event, ctx: Context, payload: threading.Lock) -> None: ...

    async def unknown(event: Event, ctx: Context, payload: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    async def unfinished(event: Event, ctx: Context, payload: "Unfinished") -> None: ...

    for function, reason in (
        (unannotated, "annotate its third argument, payload, with"),
        (unreadable, "cannot be used: Unable to generate pydantic-core schema"),
        (unknown, "cannot be used: name 'Nowhere' is not defined"),
        (unfinished, "cannot be used: name 'Missing' is not defined"),
    ):
        with pytest.raises(HandlersError, match=rf"handler .*\.{function.__name__}: .*{reason}"):
            Handlers().on("order")(function)


class Unfinished(BaseModel):
    other: "Missing"  # type: ignore[name-defined]  # noqa: F821


def test_a_model_that_json_cannot_hold_is_refused_by_the_producer() -> None:
    class Odd(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        lock: object

    @dataclass
    class Naive:
        at: datetime

    for payload in (Odd(lock=threading.Lock()), Naive(AT.replace(tzinfo=None)), Order, Naive):
        with pytest.raises(InvalidInput):
            job_text(Job("order", payload))

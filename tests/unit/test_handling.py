# ruff: noqa: ARG001 - a handler takes both arguments, used or not
"""The registry and the loading of handlers raise every mistake at start, with its reason."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from surelane_worker import Call, Context, Event, Given, Handlers, HandlersError
from surelane_worker.handling.attempt import Attempt
from surelane_worker.handling.registry import registered_in
from surelane_worker.handling.shapes import StepMismatchError
from surelane_worker.handling.threads import Threads
from surelane_worker.wiring import load_handlers

NO_EVENT = cast("Event", None)
ATTEMPT = SimpleNamespace(threads=Threads(lambda: False), in_thread=lambda call, *given: call(*given))
NO_CONTEXT = Context(cast("Attempt", ATTEMPT))


async def handle(event: Event, ctx: Context) -> str:
    return "handled"


def test_handler_takes_several_kinds_with_bounds() -> None:
    handlers = Handlers()
    assert handlers.on("a", "b", timeout="2m", concurrency=4)(handle) is handle

    @handlers.on_group("c")
    async def together(events: list[Event], ctx: Context) -> None: ...

    handler, grouped = registered_in(handlers).all()
    assert (handler.kinds, handler.timeout, handler.concurrency) == (("a", "b"), 120.0, 4)
    assert (handler.grouped, grouped.grouped) == (False, True)


def test_two_handlers_for_one_kind_and_kinds_that_no_label_can_hold_are_refused() -> None:
    handlers = Handlers()
    handlers.on("a")(handle)
    with pytest.raises(HandlersError, match=r"two handlers for 'a': .*\.handle and .*\.handle"):
        handlers.on("b", "a")(handle)
    with pytest.raises(HandlersError, match="two handlers for 'c'"):
        Handlers().on("c", "c")(handle)
    kinds: tuple[tuple[str, ...], ...]
    kinds = ((), ("",), ("mail", "half a pair \ud800"), ("mail", "a\0b"), ("mail", "two\nlines"))
    for wrong in kinds:
        with pytest.raises(HandlersError, match="name the kinds"):
            Handlers().on(*wrong)(handle)


def test_bounds_and_arguments_that_a_handler_cannot_have_are_refused() -> None:
    for register, bound in (
        *(("on", "timout"), ("on_group", "max_attempts"), ("event", "version"), ("command", "backoff")),
        *(("message", "answers"), ("action", "limit"), ("options", "debounce")),
    ):
        with pytest.raises(TypeError, match=bound):
            getattr(Handlers(), register)("a", **{bound: None})(handle)
    bounds: list[tuple[dict[str, Any], str]] = [
        ({"timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"timeout": 0}, "timeout must be positive"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
    ]
    for given, message in bounds:
        decorate: Any = Handlers().on("a", **given)
        with pytest.raises(HandlersError, match=message):
            decorate(handle)

    async def wrong(event: Event) -> None: ...

    with pytest.raises(HandlersError, match=r"wrong: it must take two arguments: \(event, ctx\)"):
        Handlers().on("a")(cast("Any", wrong))
    with pytest.raises(HandlersError, match=r"async def \(event, ctx, call_next\)"):
        Handlers().middleware(cast("Any", handle))


async def test_middlewares_wrap_in_the_order_they_are_registered() -> None:
    handlers, order = Handlers(), list[str]()

    def noting(name: str) -> Any:
        async def middleware(given: Given, ctx: Context, call_next: Call) -> object:
            order.append(f"{name} before")
            result = await call_next(given, ctx)
            order.append(f"{name} after")
            return f"{name}({result})"

        return middleware

    handlers.middleware(noting("outer"))
    handlers.on("a")(handle)
    handlers.middleware(noting("inner"))
    (handler,) = registered_in(handlers).all()
    assert await handler.call(NO_EVENT, NO_CONTEXT) == "outer(inner(handled))"
    assert order == ["outer before", "inner before", "inner after", "outer after"]


async def test_synchronous_handler_runs_beside_the_loop() -> None:
    handlers = Handlers()
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()

    @handlers.on("a")
    def blocking(event: Event, ctx: Context) -> str:
        asyncio.run_coroutine_threadsafe(reached.wait(), loop).result()
        return "from a thread"

    call = asyncio.ensure_future(registered_in(handlers).all()[0].call(NO_EVENT, NO_CONTEXT))
    await asyncio.sleep(0)
    reached.set()
    assert await call == "from a thread"


@pytest.mark.parametrize("raised", [ValueError("no"), StopIteration("no"), SystemExit(3)])
async def test_exception_of_a_synchronous_handler_reaches_the_worker(raised: BaseException) -> None:
    handlers = Handlers()

    @handlers.on("a")
    def failing(event: Event, ctx: Context) -> None:
        raise raised

    with pytest.raises((ValueError, RuntimeError), match=r"no|3"):
        await registered_in(handlers).all()[0].call(NO_EVENT, NO_CONTEXT)


@pytest.mark.parametrize(
    ("source", "path", "message"),
    [
        ("", "team_bot", "write module:attribute"),
        ("", "no_such_team_bot:handlers", "cannot import no_such_team_bot: ModuleNotFoundError"),
        ("1 / 0", "team_bot:handlers", "cannot import team_bot: ZeroDivisionError"),
        ("", "team_bot:handlers", "team_bot has no attribute 'handlers'"),
        ("handlers = {}", "team_bot:handlers", "is a dict, not a surelane_worker.Handlers"),
        ("import surelane_worker as w\nhandlers = w.Handlers()", "team_bot:handlers", "has no handlers"),
    ],
)
def test_handlers_that_cannot_be_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, path: str, message: str
) -> None:
    (tmp_path / "team_bot.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "team_bot", raising=False)
    with pytest.raises(HandlersError, match="SURELANE_HANDLERS") as refused:
        load_handlers(path)
    assert message in str(refused.value)
    sys.modules.pop("team_bot", None)


def test_built_in_handlers_answer_mentions_direct_messages_and_turns() -> None:
    handlers = registered_in(load_handlers("surelane_worker.builtin.messages:handlers")).all()
    kinds = {kind for handler in handlers for kind in handler.kinds}
    assert kinds == {"slack.app_mention", "slack.message.im", "agent-turn"}


@pytest.mark.parametrize("name", ["deploy:1", "a:b:12"])
async def test_a_wait_is_not_named_like_a_question(name: str) -> None:
    with pytest.raises(StepMismatchError, match="names a question"):
        await Context.wait_for(NO_CONTEXT, name)

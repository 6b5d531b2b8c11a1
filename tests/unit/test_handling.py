# ruff: noqa: ARG001 - a handler takes both arguments, used or not
"""The registry and the loading of handlers raise every mistake at start; sets include other sets."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from surelane.errors import INSTALL
from surelane_worker import Call, Context, Event, Given, Handlers
from surelane_worker.errors import HandlersError
from surelane_worker.handling.attempt import Attempt
from surelane_worker.handling.registry import registered_in
from surelane_worker.handling.shapes import StepMismatchError
from surelane_worker.handling.threads import Threads
from surelane_worker.wiring import load_handlers

NO_EVENT = cast("Event", None)
ATTEMPT = SimpleNamespace(
    threads=Threads(lambda: None), in_thread=lambda call, *given: call(*given), stop_calls=None
)
NO_CONTEXT = Context(cast("Attempt", ATTEMPT))


async def handle(event: Event, ctx: Context) -> str:
    return "handled"


def test_handler_takes_several_kinds_with_bounds_and_mistakes_are_refused() -> None:
    handlers = Handlers()
    assert handlers.on("a", "b", timeout="2m", concurrency=4)(handle) is handle

    @handlers.on_group("c")
    async def together(events: list[Event], ctx: Context) -> None: ...

    handler, grouped = registered_in(handlers).all()
    assert (handler.kinds, handler.timeout, handler.concurrency) == (("a", "b"), 120.0, 4)
    assert (handler.grouped, grouped.grouped) == (False, True)
    with pytest.raises(HandlersError, match=r"two handlers for 'a': .*\.handle and .*\.handle"):
        handlers.on("d", "a")(handle)
    with pytest.raises(HandlersError, match="two handlers for 'c'"):
        Handlers().on("c", "c")(handle)
    for wrong in ((), ("",), ("mail", "half a pair \ud800"), ("mail", "a\0b"), ("mail", "two\nlines")):
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


async def test_middlewares_wrap_in_their_order_and_those_of_both_sets_an_included_handler() -> None:
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
    included, around = saying("word", "a"), Handlers()
    included.middleware(noting("within"))
    around.middleware(noting("around"))
    around.include(included)
    assert await said(around) == {"a": "around(within(word))"}


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


NEEDS = "it needs surelane-nothing, which is not installed"


@pytest.mark.parametrize(
    ("source", "path", "message"),
    [
        ("", "team_bot", "write module:attribute"),
        ("", "no_such_team_bot:handlers", "cannot import no_such_team_bot: ModuleNotFoundError"),
        ("1 / 0", "team_bot:handlers", "cannot import team_bot: ZeroDivisionError"),
        ("import surelane_nothing.x", "team_bot:handlers", f"team_bot: {NEEDS}: {INSTALL} surelane-nothing"),
        ("raise SystemExit('no key')", "team_bot:handlers", "cannot import team_bot: SystemExit: no key"),
        (
            "raise ValueError('2 faults\\n  a')",
            "team_bot:handlers",
            "cannot import team_bot: ValueError: 2 faults a",
        ),
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


async def test_a_wait_is_not_named_like_a_question() -> None:
    for name in ("deploy:1", "a:b:12"):
        with pytest.raises(StepMismatchError, match="names a question"):
            await Context.wait_for(NO_CONTEXT, name)


def registered(*versions: str | None, into: Handlers | None = None, **bounds: Any) -> Handlers:
    handlers = into or Handlers()
    for version in versions:
        on: Any = handlers.on
        on("order", version=version, **bounds)(handle)
    return handlers


def test_one_handler_claims_the_kind_and_those_of_its_versions() -> None:
    by_kind = registered_in(registered("1", "9", "10")).by_kind()
    assert sorted(by_kind) == ["order", "order@1", "order@10", "order@9"]
    (handler,) = set(by_kind.values())
    assert handler.version == "10"
    versions = {"1": "1", "9": "9", "10": "10"}
    assert {version: each.version for version, each in handler.versions.items()} == versions
    assert list(registered_in(registered(None)).by_kind()) == ["order"], "without a version, the kind alone"


def test_version_is_made_of_numbers_of_its_own_and_versions_of_a_kind_gather_alike() -> None:
    for version in ("", "two", "1.", ".1", "01", "1..2", "-1", "٢", "1" * 21, "1\n"):
        with pytest.raises(HandlersError, match="version is a text of numbers"):
            registered(version)
    for versions in ((None, "2"), ("2", None), ("2", "2"), (None, None)):
        with pytest.raises(HandlersError, match=r"two handlers for 'order'.*version='1'"):
            registered(*versions)
    handlers = registered("1", debounce="1s")
    with pytest.raises(HandlersError, match="same debounce"):
        registered_in(registered("2", into=handlers)).by_kind()
    with pytest.raises(HandlersError, match="fewer than 180 characters"):
        Handlers().on("k" * 180, version="2")(handle)


def saying(word: str, *kinds: str) -> Handlers:
    """Return a set whose handler returns a word."""
    handlers = Handlers()

    @handlers.on(*kinds)
    async def say(event: Event, ctx: Context) -> str:
        return word

    return handlers


async def said(handlers: Handlers) -> dict[str, object]:
    """Return what the handler of each kind returns."""
    by_kind = registered_in(handlers).by_kind()
    return {kind: await handler.call(NO_EVENT, NO_CONTEXT) for kind, handler in by_kind.items()}


async def test_a_sets_own_handlers_stand_before_included_ones_and_old_versions_may_stand_there() -> None:
    own = Handlers()
    own.include(saying("included", "a", "b"))

    @own.on("a")
    async def mine(event: Event, ctx: Context) -> str:
        return "mine"

    own.include(saying("later", "b", "c"))
    assert await said(own) == {"a": "mine", "b": "included", "c": "later"}
    for version, kinds in (("2", ["order", "order@2", "order@1"]), (None, ["order"])):
        handlers = registered(version)
        handlers.include(registered("1"))
        by_kind = registered_in(handlers).by_kind()
        assert list(by_kind) == kinds
        assert by_kind["order"].version == version


def test_schedules_come_with_the_sets_that_declare_them() -> None:
    inner, outer = Handlers(), Handlers()
    inner.cron("nightly", "0 3 * * *", kind="a")
    inner.cron("hourly", "0 * * * *", kind="a")
    outer.include(inner)
    outer.cron("nightly", "0 4 * * *", kind="b", payload={"n": 1}, time_zone="Europe/Berlin", catch_up="all")
    declared = {"nightly": ("0 4 * * *", "b"), "hourly": ("0 * * * *", "a")}
    assert {each.name: (each.schedule, each.kind) for each in registered_in(outer).schedules()} == declared
    with pytest.raises(HandlersError, match="two schedules are called 'nightly'"):
        outer.cron("nightly", "0 4 * * *", kind="a")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"schedule": "often"}, {"schedule": "0 0 31 2 *"}, {"time_zone": "Mars/Base"}, {"overlap": "stop"}),
        *({"jitter": "2d"}, {"jitter": "soon"}, {"catch_up": 0}, {"catch_up": "most"}),
    ],
)
def test_a_schedule_that_cannot_be_read_is_refused_at_start(wrong: Any) -> None:
    with pytest.raises(HandlersError, match="schedule 'nightly'"):
        Handlers().cron(**{"name": "nightly", "schedule": "0 3 * * *", "kind": "a", **wrong})


def test_a_failure_hook_has_the_kinds_of_its_set_without_versions_or_those_that_it_names() -> None:
    inner, outer = saying("word", "a", "b"), saying("other", "c")
    outer.include(inner)

    @inner.on_failure("a")
    async def first(event: Event, ctx: Context) -> None: ...

    @outer.on_failure()
    async def second(event: Event, ctx: Context) -> None: ...

    by_kind = registered_in(outer).by_kind()
    hooks = {kind: handler.name for kind, handler in by_kind.items() if kind.startswith("surelane.")}
    assert set(hooks) == {f"surelane.failed:{kind}" for kind in "abc"}
    assert {name.rsplit(".", 1)[-1] for name in hooks.values()} == {"second"}
    long = saying("long", "k" * 185)
    long.on_failure()(handle)
    with pytest.raises(HandlersError, match="at most 184 characters: 'k"):
        registered_in(long).by_kind()
    handlers = registered("1", "2")
    handlers.on_failure()(handle)
    kinds = [kind for kind in registered_in(handlers).by_kind() if "failed" in kind]
    assert kinds == ["surelane.failed:order"]

"""How an event ends follows from what its handler returns or raises, and nothing else ends with it."""

import asyncio
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import NoReturn

import pytest
from opentelemetry.context import attach, get_value, set_value
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel
from slack_sdk.errors import SlackApiError
from structlog.testing import capture_logs

from surelane.testing import fleet, virtual
from surelane_dev.testing.fleets import face
from surelane_service.telemetry.spans import Ids, Tracer
from surelane_worker import (
    Await,
    Context,
    Continuation,
    Discard,
    Event,
    FanOut,
    Handlers,
    Job,
    Retry,
    Snooze,
)
from surelane_worker.observing.tracing import Observer, Tracing
from surelane_worker.slack.limits import SlackBusyError


class UnprintableError(Exception):
    """An error that cannot be turned into text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Treacherous(dict[str, str]):
    """A value that raises an unusual error when it is serialised."""

    def items(self) -> NoReturn:
        raise KeyError("treacherous")


def raising(error: BaseException) -> NoReturn:
    raise error


def again(outcome: object, event: Event, ctx: Context) -> object:
    """Return an outcome at the first claim, and then what the attempt and the claim are."""
    return outcome if event.claim == 1 else {"attempt": ctx.attempt, "claim": event.claim}


REFUSED = SlackApiError("no", {"ok": False, "error": "not_in_channel"})  # type: ignore[no-untyped-call]
THEN, NAIVE = Continuation("nothing"), datetime(2030, 1, 1)  # noqa: DTZ001
LAST = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))
UNSTORABLE, MENDED = "a\0b\ud800", "a\ufffdb\ufffd"
ENDINGS: dict[str, tuple[Callable[[Event, Context], object], object, list[str]]] = {
    "result": (lambda *_: {"text": "hé"}, {"text": "hé"}, []),
    "retry": (lambda *of: again(Retry("1s", "not yet"), *of), {"attempt": 2, "claim": 2}, ["not yet"]),
    "snooze": (lambda *of: again(Snooze(1), *of), {"attempt": 1, "claim": 2}, []),
    "nul": (lambda *_: {"text": UNSTORABLE}, {"text": MENDED}, []),
    "call past Slack's limit": (
        lambda *of: raising(SlackBusyError(1.0)) if of[0].claim == 1 else again(None, *of),
        {"attempt": 1, "claim": 2},
        [],
    ),
}
"""What a handler does, its event's result, and the messages of its errors."""
FAILURES: dict[str, tuple[Callable[[], object], str]] = {
    "raise": (lambda: raising(RuntimeError("always")), "always"),
    "raise unstorable": (lambda: raising(RuntimeError(UNSTORABLE)), MENDED),
    "exit": (lambda: raising(SystemExit(3)), "3"),
    "interrupt": (lambda: raising(KeyboardInterrupt()), ""),
    "unprintable": (lambda: raising(UnprintableError()), "without text"),
    "not JSON": (object, "is not JSON"),
    "treacherous": (lambda: Treacherous(a="b"), "treacherous"),
    "unwanted": (lambda: Discard("unwanted"), "unwanted"),
    "refused by Slack": (lambda: raising(REFUSED), "not_in_channel"),
    "discard": (lambda: Discard(ValueError(UNSTORABLE)), MENDED),  # type: ignore[arg-type]
    "unprintable discard": (lambda: Discard(UnprintableError()), "without text"),  # type: ignore[arg-type]
    "payload": (lambda: FanOut([Job("nothing", uuid.uuid4())], THEN), "UUID is not JSON"),
    "naive run_at": (lambda: FanOut([Job("nothing", run_at=NAIVE)], THEN), "has no time zone"),
    "no job": (lambda: FanOut(["nothing"], THEN), "takes jobs, not str"),  # type: ignore[list-item]
    "no continuation": (lambda: FanOut([], None), "takes jobs, not NoneType"),  # type: ignore[arg-type]
    "fan-out result": (lambda: FanOut([], THEN, result=object()), "is not JSON"),
    "refused by the database": (lambda: FanOut([Job("nothing", max_attempts=-1)], THEN), "max_attempts"),
    "not a number": (lambda: FanOut([Job("nothing", float("nan"))], THEN), "not JSON compliant"),
    "long retry": (lambda: Retry(timedelta.max), "longer than 3650 days"),
    "long snooze": (lambda: Snooze(timedelta(days=10**8)), "longer than 3650 days"),
    "naive await": (lambda: Await(NAIVE), "has no time zone"),
    "await nothing": (lambda: Await(None), "datetime is needed"),  # type: ignore[arg-type]
    "await the end of time": (lambda: Await(LAST), "out of range"),
}
"""What a handler does, and the end of its error's message."""
REASONS = {
    "not JSON": "result_refused",
    "fan-out result": "result_refused",
    "refused by the database": "continuation_refused",
    "unwanted": "unwanted",
    "refused by Slack": "not_in_channel",
    "discard": MENDED,
    "unprintable discard": "(UnprintableError without text)",
}
"""Why the events fail that fail at once. The others fail after three attempts."""


@virtual
async def test_each_outcome_ends_its_event_and_none_that_cannot_be_settled_ends_more() -> None:
    handlers, others_ended = Handlers(), asyncio.Event()

    @handlers.on("ends")
    async def ends(event: Event, ctx: Context) -> object:
        name = event.payload["name"]
        return FAILURES[name][0]() if name in FAILURES else ENDINGS[name][0](event, ctx)

    @handlers.on("innocent", max_attempts=1)
    async def innocent(_: Event, __: Context) -> None:
        await others_ended.wait()

    settings = {"SURELANE_CONCURRENCY": "50", "SURELANE_BACKOFF_BASE": "1s"}
    async with fleet(handlers, settings=settings) as f:
        beside, unhandled = await f.enqueue("innocent"), await f.enqueue("unheard-of")
        with capture_logs() as logs:
            some = {name: await f.enqueue("ends", {"name": name}) for name in [*ENDINGS, *FAILURES]}
            rows = {name: await f.until(event.ended) for name, event in some.items()}
        assert not [entry for entry in logs if "crashed" in entry["event"]]
        for name, (_, result, errors) in ENDINGS.items():
            row = rows[name]
            assert (row["outcome"], row["result"], row["attempts"]) == ("completed", result, 1 + len(errors))
            assert [error["message"] for error in row["errors"]] == errors
        for name, (_, message) in FAILURES.items():
            row, tries = rows[name], 1 if name in REASONS else 3
            reason = REASONS.get(name, "attempts_exhausted")
            assert (row["outcome"], row["reason"], row["attempts"]) == ("failed", reason, tries)
            assert len(row["errors"]) == tries
            assert message in row["errors"][-1]["message"]
        assert [error["attempt"] for error in rows["raise"]["errors"]] == [1, 2, 3]
        error = rows["raise"]["errors"][0]
        assert (error["type"], error["worker"]) == ("RuntimeError", "worker-1")
        assert "test_outcomes.py" in error["where"]
        others_ended.set()
        await beside.result()
        row = await unhandled.row()
        assert (row["attempts"], row["claimed_by"]) == (0, None)
        one = await f.enqueue("ends", {"name": "raise"}, max_attempts=1)
        assert len(await one.errors()) == 1


class Typed(BaseModel):
    """A payload."""

    at: datetime
    numbers: dict[str, int]


@virtual
async def test_payload_that_does_not_fit_fails_once_and_names_the_field_alone() -> None:
    handlers = Handlers()

    @handlers.on("typed")
    async def typed(_: Event, __: Context, payload: Typed) -> object:
        return [payload.at.isoformat(), payload.numbers]

    async with fleet(handlers) as f:
        at = datetime(2030, 1, 2, tzinfo=UTC)
        fits = await f.enqueue("typed", Typed(at=at, numbers={"one": 1}))
        assert await fits.result() == [at.isoformat(), {"one": 1}]
        with capture_logs() as logs:
            event = await f.enqueue("typed", {"at": "marked", "numbers": {"n": "marked"}})
            row = await f.until(event.ended)
        assert (row["outcome"], row["reason"], row["attempts"]) == ("failed", "invalid_payload", 1)
        (error,) = await event.errors()
        assert error.startswith("InvalidPayloadError: ")
        assert "numbers.n: Input should be" in error
        assert "marked" not in str(row["errors"])
        (logged,) = [entry for entry in logs if "InvalidPayloadError" in str(entry)]
        assert "marked" not in str(logged)


@virtual
async def test_what_takes_too_long_fails_and_names_its_line() -> None:
    handlers = Handlers()

    @handlers.on("slow", timeout="1m")
    async def slow(_: Event, __: Context) -> None:
        await asyncio.sleep(3600)  # here

    @handlers.on("unhurried")
    async def unhurried(_: Event, __: Context) -> None:
        await asyncio.sleep(3600)

    @handlers.on("swapped")
    async def swapped(event: Event, ctx: Context) -> None:
        await ctx.slack.reply("hello", event)  # type: ignore[arg-type]

    settings = {"SURELANE_HANDLER_TIMEOUT": "2m"}
    async with fleet(handlers, settings=settings) as f:
        (error,) = (await f.until((await f.enqueue("slow", max_attempts=1)).ended))["errors"]
        assert error["type"] == "HandlerTimeoutError"
        path, _, number = error["where"].rpartition(":")
        lines = Path(path).read_text().splitlines()  # noqa: ASYNC240 - a small file
        assert lines[int(number) - 1].endswith("# here")
        assert "in slow" in error["traceback"]
        told = await (await f.enqueue("unhurried", max_attempts=1)).errors()
        assert told == ["HandlerTimeoutError: the handler took longer than 120 s"]
        (error,) = await (await f.enqueue("swapped", max_attempts=1)).errors()
        assert error.startswith("TypeError: ")
        assert "reply(event, text)" in error


# --- Groups and bounds


class Together:
    """Notes which events of a kind run at once, and in which order all of them began and ended."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, int]] = []
        self.handlers = Handlers()
        self.handlers.on("step")(self.run)
        self.handlers.on("bounded", concurrency=1)(self.run)

        @self.handlers.on_group("together")
        async def together(events: list[Event], ctx: Context) -> list[int]:
            await self.run(events[0], ctx)
            return [event.payload["n"] for event in events]

    async def run(self, event: Event, ctx: Context) -> None:
        self.log.append(("begin", event.kind, event.payload["n"]))
        await asyncio.sleep(0.1)
        self.log.append(("end", event.kind, event.payload["n"]))
        if event.payload.get("bad") and ctx.attempt == 1:
            raise RuntimeError("bad")

    def one_at_a_time(self, which: str | int) -> bool:
        """Return whether no two events of a kind, or with a number, ran at once."""
        some = [(what, n) for what, kind, n in self.log if which in (kind, n)]
        return all(
            (begin, end) == (("begin", begin[1]), ("end", begin[1]))
            for begin, end in zip(some[::2], some[1::2], strict=True)
        )


@virtual
async def test_a_group_of_several_kinds_runs_in_order_and_within_each_handlers_bound() -> None:
    """Some groups begin with the handler whose only slot is taken, and some events have no group."""
    ran, kinds = Together(), ("step", "bounded", "step", "bounded", "together", "step")
    async with fleet(ran.handlers, workers=0) as f:
        for group in range(8):
            for kind in kinds if group % 2 else kinds[1:]:
                await f.enqueue(kind, {"n": group}, group_key=f"T:C:{group}")
        for number in range(4):
            await f.enqueue("bounded", {"n": 100 + number})
        f.start()
        await f.until(lambda: len(ran.log) == 2 * (8 * 6 - 4 + 4))
        assert ran.one_at_a_time("bounded")
        for group in range(8):
            assert ran.one_at_a_time(group)
            began = [kind for what, kind, n in ran.log if (what, n) == ("begin", group)]
            assert tuple(began) == (kinds if group % 2 else kinds[1:])
        outcomes = await f.sql("select distinct outcome, attempts from agent.event_hist")
        assert [tuple(row) for row in outcomes] == [("completed", 1)]


@virtual
async def test_a_group_is_handled_whole_or_one_by_one_and_a_retry_holds_back_the_rest() -> None:
    ran = Together()
    async with fleet(ran.handlers, workers=0) as f:
        some = [await f.enqueue("together", {"n": n}, group_key="T:C:1") for n in range(5)]
        first = await f.enqueue("step", {"n": 10, "bad": True}, group_key="T:C:3")
        rest = [await f.enqueue("step", {"n": 11 + n}, group_key="T:C:3") for n in range(3)]
        f.start()
        assert [await event.result() for event in some] == [[0, 1, 2, 3, 4]] * 5
        rows = [await f.until(event.ended) for event in (first, *rest)]
        assert [row["attempts"] for row in rows] == [2, 1, 1, 1]
        began = [n for what, _, n in ran.log if what == "begin" and n >= 10]
        assert began == [10, 10, 11, 12, 13]


@virtual
async def test_a_bounded_handler_with_a_backlog_does_not_hold_back_the_others() -> None:
    ran = Together()
    async with fleet(ran.handlers, workers=0) as f:
        await f.sql("select agent.enqueue('bounded', '{\"n\": 1}') from generate_series(1, 200)")
        quick = [await f.enqueue("step", {"n": 2}) for _ in range(40)]
        f.start()
        for event in quick:
            await event.result()
        assert f.now < 60
        assert len([n for what, _, n in ran.log if (what, n) == ("end", 1)]) < 100


# --- Workflows


@virtual
async def test_a_plan_goes_on_in_subtasks_and_their_synthesis_and_an_await_takes_its_answer() -> None:
    handlers, sums = Handlers(), list[int]()

    @handlers.on("plan")
    async def plan(event: Event, _: Context) -> FanOut:
        children = [Job("subtask", {"n": n}) for n in range(event.payload["parts"])]
        return FanOut(children, Continuation("synthesize"), result="planned")

    @handlers.on("subtask")
    async def subtask(event: Event, _: Context) -> int:
        return int(event.payload["n"]) ** 2

    @handlers.on("synthesize")
    async def synthesize(event: Event, ctx: Context) -> None:
        sums.append(sum(child.result for child in await ctx.queue.children(event.id)))

    @handlers.on("dispatch-execute")
    async def dispatch(_: Event, __: Context) -> Await:
        return Await(datetime.now(UTC) + timedelta(minutes=1))

    async with fleet(handlers) as f:
        assert await (await f.enqueue("plan", {"parts": 5})).result() == "planned"
        await f.until(lambda: sums)
        assert sums == [0 + 1 + 4 + 9 + 16]
        event = await f.enqueue("dispatch-execute")
        with capture_logs() as logs:
            while await f.queue.answer_event(event.id, '{"from": "elsewhere"}') != "done":
                await f.sleep(0.1)
            assert await event.result() == {"from": "elsewhere"}
            await f.sleep(1)
        assert not [entry for entry in logs if "stale" in entry["event"]]


# --- Context variables


class Incomparable:
    """A value that refuses to be compared, as arrays do."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("no truth value")


LEFT: ContextVar[int | None] = ContextVar("left", default=None)
ARRAY: ContextVar[Incomparable] = ContextVar("array")


def leave(number: int) -> list[object]:
    """Leave a number in this context, and return what was there before."""
    found = [LEFT.get(), get_value("left")]
    LEFT.set(number)
    ARRAY.set(Incomparable())
    attach(set_value("left", number))  # as a library that forgets to detach
    return found


@pytest.mark.parametrize("traced", [False, True])
@virtual
async def test_no_event_finds_what_an_earlier_one_left(traced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = Handlers()

    @handlers.on("leave")
    async def leaves(event: Event, _: Context) -> object:
        return leave(event.payload["n"])

    @handlers.on("raise")
    async def leaves_and_raises(event: Event, ctx: Context) -> object:
        found = leave(event.payload["n"])
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        return found

    @handlers.on("leave in parts")
    async def leaves_in_parts(event: Event, ctx: Context) -> object:
        leave(event.payload["n"])
        await ctx.step("step", lambda: None)
        return [LEFT.get(), get_value("left")]

    if traced:
        provider = TracerProvider(id_generator=Ids())
        tracing = Tracing(Tracer(provider, provider.get_tracer("test")))
        monkeypatch.setattr(face, "Observer", lambda metrics: Observer(metrics, tracing))
    ARRAY.set(Incomparable())
    settings = {"SURELANE_CONCURRENCY": "1", "SURELANE_NOTIFICATIONS": "false"}
    async with fleet(handlers, workers=0, settings=settings) as f:
        some = [await f.enqueue("leave", {"n": n}) for n in range(10)]
        some += [await f.enqueue("leave", {"n": n}, group_key="T:C:1") for n in range(10)]
        some += [await f.enqueue("raise", {"n": n}) for n in range(5)]
        parts = [await f.enqueue("leave in parts", {"n": n}) for n in range(5)]
        f.start()
        assert [await event.result() for event in some] == [[None, None]] * 25
        assert [await event.result() for event in parts] == [[n, n] for n in range(5)]


@virtual
async def test_event_whose_thread_is_gone_is_cancelled_and_says_why_and_nothing_is_left() -> None:
    handlers = Handlers()
    gone = "cancelled while running by surelane: the message that it answers was deleted"

    @handlers.on("slack.app_mention")
    async def answer(event: Event, ctx: Context) -> None:
        await asyncio.sleep(1)  # the question is deleted meanwhile
        match event.slack["text"]:
            case "ask":
                await ctx.ask(event, "Which?", ["this", "that"])
            case "stream":
                async with ctx.slack.stream(event) as stream:
                    await stream.append("said")
            case "step":
                await ctx.step("reply", ctx.slack.reply, event, "said")
            case _:
                async with asyncio.TaskGroup() as group:
                    group.create_task(ctx.slack.reply(event, "said"))

    @handlers.on_failure()
    async def told(event: Event, ctx: Context) -> None:
        await ctx.slack.client.chat_postMessage(channel=event.slack["channel"], text="failed")

    async with fleet(handlers) as f:
        for text in ("ask", "stream", "step", "reply"):
            event = await f.mention(text)
            f.slack.gone.add(event.payload["event"]["ts"])
            row = await f.until(event.ended)
            assert (row["outcome"], row["reason"], row["attempts"]) == ("cancelled", gone, 1), text
        await f.sleep("5m")
        assert f.slack.messages == []


@virtual
async def test_streamed_answer_is_there_once_whatever_slack_refuses_or_does_without_saying_so() -> None:
    handlers = Handlers()

    @handlers.on("slack.app_mention")
    async def answer(event: Event, ctx: Context) -> None:
        async with ctx.slack.stream(event, interval=0) as stream:
            for word in ("one ", "two ", "three"):
                await stream.append(word)

    methods = [
        f"chat.{name}" for name in ("startStream", "appendStream", "stopStream", "postMessage", "update")
    ]
    async with fleet(handlers) as f:
        for number in range(2 * len(methods) ** 2):
            first, second = methods[number // 2 % len(methods)], methods[number // 2 // len(methods)]
            f.slack.refused = (
                {} if first in ("chat.postMessage", "chat.update") else {first: "user_not_found"}
            )
            f.slack.failing = {second: "internal_error"}
            event = await f.mention("hello", user="B1" if first == "chat.postMessage" else "U1")
            if number % 2:
                with f.killed_at("end"):
                    await event.result()
            else:
                await event.result()
            assert f.replies(event) == ["one two three"], (first, second)
        assert not [each for each in f.slack.messages if each.get("streaming_state") == "in_progress"]

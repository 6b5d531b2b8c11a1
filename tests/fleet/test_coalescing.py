"""Quick messages of one thread are handed to one run, and none of them is lost or handled twice."""

import asyncio
from typing import Any

from surelane.testing import fleet, virtual
from surelane_operator.reads.events import Reads
from surelane_operator.reads.timeline import story_of
from surelane_worker import Context, Discard, Event, FanOut, Handlers, Job, Limit, Snooze
from surelane_worker import Continuation as Then


def words(events: list[Event]) -> list[str]:
    """Return what the events say."""
    return [event.payload["text"] for event in events]


def talking(log: list[str], go: asyncio.Event | None = None) -> Handlers:  # noqa: C901 - one after another
    """Return handlers that wait until a thread is quiet for ten seconds, and then do what its first event says."""
    handlers = Handlers()

    async def until_told() -> None:
        log.append("began")
        assert go is not None
        await go.wait()

    @handlers.on("talk", debounce="10s", backoff="1s")
    async def talk(events: list[Event], ctx: Context) -> Any:
        said: list[str] = await ctx.step("read", lambda texts: texts, words(events))
        log.append(" ".join(words(events)))
        match events[0].payload.get("do"):
            case "fail once" if ctx.attempt == 1:
                await until_told()
                raise RuntimeError("not yet")
            case "undo":
                await ctx.undo("read", log.append, "undid")
                return Discard("no more")
            case "fail":
                return Discard("no more")
            case "sleep":
                await ctx.sleep("5s")
                assert said == await ctx.step("read again", lambda texts: texts, words(events))
            case "snooze" if log.count("a b") == 1:
                return Snooze("5s")
            case "wait":
                await until_told()
            case "fan out":
                return FanOut([Job("plain", {"text": "child"})], Then("plain", {"text": "then"}))
        return said

    @handlers.on("in-thread", debounce="10s")
    def in_thread(events: list[Event], _: Context) -> Any:
        return words(events)

    @handlers.on("limited", debounce="10s", limit=Limit(concurrency=1))
    async def limited(events: list[Event], _: Context) -> Any:
        return words(events)

    @handlers.on("plain")
    async def plain(event: Event, _: Context) -> Any:
        return event.payload["text"]

    return handlers


async def say(f: Any, *texts: str, kind: str = "talk", group: str = "thread", **first: Any) -> list[Any]:
    """Store messages of one thread. The first says what to do."""
    return [
        await f.enqueue(kind, {"text": text} | ({} if number else first), group_key=group)
        for number, text in enumerate(texts)
    ]


async def ends(f: Any, *events: Any) -> list[Any]:
    """Wait until events have ended; return each one's result, or the id of the event whose run it followed."""
    found = []
    for event in events:
        row = await f.until(event.ended)
        assert row["outcome"] == "completed", row
        into = (row["reason"] or "").removeprefix("coalesced into ")
        found.append(int(into) if into else row["result"])
    return found


async def attempts(*events: Any) -> list[int]:
    return [(await event.row())["attempts"] for event in events]


@virtual
async def test_a_run_waits_until_no_more_come_and_gets_them_in_order() -> None:
    async with fleet(talking([])) as f:
        (first,) = await say(f, "a")
        await f.sleep(8)
        row = await first.row()
        assert (row["claimed_by"], row["attempts"], row["head"]) == (None, 0, True)
        assert await first.why() == "debounced"
        more = await say(f, "b", "c")
        assert await more[0].why() == "group_waits"
        assert await ends(f, first, *more) == [["a", "b", "c"], first.id, first.id]
        assert 18 < f.now < 20
        assert await attempts(first) == [1]
        first, second = await say(f, "a", "b", kind="in-thread")
        assert await ends(f, first, second) == [["a", "b"], first.id]
        first, *others = await say(f, "a", "b", "c", kind="limited")
        assert await ends(f, first, *others) == [["a", "b", "c"], first.id, first.id]


@virtual
async def test_what_can_get_no_more_is_handled_at_once() -> None:
    async with fleet(talking([])) as f:
        assert await ends(f, await f.enqueue("talk", {"text": "alone"})) == [["alone"]]
        first, second = await say(f, "a") + await say(f, "p", kind="plain")
        assert await ends(f, first, second) == [["a"], "p"]
        assert f.now < 5


@virtual
async def test_other_kinds_of_the_thread_keep_their_turn() -> None:
    async with fleet(talking([]), workers=0) as f:
        first, second = await say(f, "a", "b")
        (plain,) = await say(f, "p", kind="plain")
        third, fourth = await say(f, "c", "d")
        f.start()
        ended = await ends(f, first, second, plain, third, fourth)
        assert ended == [["a", "b"], first.id, "p", ["c", "d"], third.id]


@virtual
async def test_every_attempt_and_a_new_run_get_the_same_events() -> None:
    """Their steps, which were stored for them, fit. The third event comes before the second attempt."""
    log, go = list[str](), asyncio.Event()
    async with fleet(talking(log, go)) as f:
        first, second = await say(f, "a", "b", do="fail once")
        await f.until(lambda: "began" in log)
        (third,) = await say(f, "c")
        go.set()
        assert await ends(f, first, second, third) == [["a", "b"], first.id, ["c"]]
        assert await attempts(first, second) == [2, 1]
        for do in ("sleep", "snooze"):
            log.clear()
            first, *others = await say(f, "a", "b", do=do)
            assert await ends(f, first, *others) == [["a", "b"], first.id]
            assert log == ["a b", "a b"]
        for step in (None, "read"):
            assert await (await f.rerun(first, step)).result() == ["a", "b"]
        assert await ends(f, *others) == [first.id]
        first, second = await say(f, "a", "b", do="fan out")
        assert await ends(f, first, second) == [None, first.id]


@virtual
async def test_followers_of_a_run_that_failed_for_good_are_handled_anew() -> None:
    log: list[str] = []
    async with fleet(talking(log)) as f:
        for do in ("fail", "undo"):
            first, *others = await say(f, "a", "b", "c", do=do)
            assert (await f.until(first.ended))["reason"] == "no more"
            assert await ends(f, *others) == [["b", "c"], others[0].id]
        assert log.count("undid") == 1


@virtual
async def test_a_follower_is_cancelled_alone_and_a_head_with_its_run() -> None:
    log: list[str] = []
    async with fleet(talking(log, asyncio.Event())) as f:
        first, second, third = await say(f, "a", "b", "c", do="wait")
        await f.until(lambda: "began" in log)
        assert await f.cancel(second) == "running"
        assert (await f.until(second.ended))["outcome"] == "cancelled"
        assert (await first.row())["claimed_by"]
        await f.cancel(first)
        assert (await f.until(first.ended))["outcome"] == "cancelled"
        assert await ends(f, third) == [["c"]]
        assert log == ["a b c", "began", "c"]


@virtual
async def test_followers_are_handled_anew_if_an_operator_ended_the_head() -> None:
    log, go = list[str](), asyncio.Event()
    async with fleet(talking(log, go)) as f:
        first, *others = await say(f, "a", "b", "c", do="wait")
        await f.until(lambda: "began" in log)
        await f.sql("select agent.delete_event($1)", first.id)
        go.set()
        assert await ends(f, first, *others) == [None, ["b", "c"], others[0].id]


@virtual
async def test_a_follower_that_history_refuses_is_handled_anew() -> None:
    async with fleet(talking([])) as f:
        first, second, third = await say(f, "a", "b", "c")
        refusing = f"check (id <> {second.id} or reason is null) not valid"
        await f.sql(f"alter table agent.event_hist add constraint refused {refusing}")
        try:
            ended = await ends(f, first, second, third)
        finally:
            await f.sql("alter table agent.event_hist drop constraint refused")
        assert ended == [["a", "b", "c"], ["b", "c"], second.id]


@virtual
async def test_replies_are_those_of_the_run_and_answer_the_last_message() -> None:
    handlers = Handlers()

    @handlers.on("slack.app_mention", debounce="10s")
    async def mentioned(events: list[Event], ctx: Context) -> None:
        await ctx.slack.reply(events[-1], " + ".join(event.slack["text"] for event in events))
        await ctx.sleep("5s")
        await ctx.slack.reply(events[-1], "and once more")

    async with fleet(handlers) as f:
        first = await f.mention("one")
        second = await f.mention("two", thread=first)
        rows = [await f.until(event.ended) for event in (first, second)]
        assert rows[1]["reason"] == f"coalesced into {first.key}"
        assert [message["text"] for message in f.slack.messages] == ["one + two", "and once more"]
        thread = first.payload["event"]["ts"]
        assert {message["thread_ts"] for message in f.slack.messages} == {thread}
        job = await Reads(f.connection).get(first.id)
        assert job is not None
        assert ("coalesced", f"with {second.id}") in [(step.what, step.detail) for step in story_of(job)]


@virtual
async def test_nothing_is_lost_or_handled_twice_though_the_worker_is_killed() -> None:
    log: list[str] = []
    async with fleet(talking(log)) as f:
        with f.killed_at("end"):
            first, *others = await say(f, "a", "b", "c")
            await f.until(lambda: len(f.workers) == 1 and f.workers[0].host.name == "worker-2")
            (late,) = await say(f, "late")
            assert await ends(f, first, *others, late) == [["a", "b", "c"], first.id, first.id, ["late"]]
        assert await attempts(first, *others, late) == [2, 1, 1, 1]
        assert log == ["a b c", "a b c", "late"]

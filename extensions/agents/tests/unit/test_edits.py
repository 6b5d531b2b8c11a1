"""A person edits or deletes a message: its turn is begun anew or cancelled."""

import asyncio
from functools import partial
from typing import Any

import pytest

from surelane.slack import edited_message
from surelane.testing import fleet, virtual
from surelane_agents.context.thread import TURN
from surelane_worker import Context, Event, Handlers

MODEL = {
    "SURELANE_MODEL": "openai:none",
    "SURELANE_MODEL_URL": "http://127.0.0.1:9/v1",
    "SURELANE_MODEL_KEY": "none",
}


class Turns:
    """A handler whose attempts are turns, as an agent's are, until the test lets them end."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.handlers = Handlers()

        @self.handlers.on("slack.app_mention")
        async def mentioned(event: Event, ctx: Context) -> None:
            await ctx.step(TURN, list)
            text = event.slack["text"]
            self.begun.append(text)
            await self.gates.setdefault(text, asyncio.Event()).wait()
            await ctx.slack.reply(event, text)

    def end(self, text: str) -> None:
        self.gates.setdefault(text, asyncio.Event()).set()


def edit(f: Any, event: Any, text: str | None) -> dict[str, Any]:
    """Return what Slack posts when a message is edited, or without a text when it is deleted."""
    about, ts = event.payload["event"], f.slack.next_ts()
    message = {key: about[key] for key in ("user", "text", "ts", "thread_ts") if key in about}
    message["type"] = "message"
    change: dict[str, Any] = {"previous_message": message}
    if text is not None:
        change["message"] = {**message, "text": text, "edited": {"user": about["user"], "ts": ts}}
    else:
        change["deleted_ts"] = message["ts"]
    inner = {"type": "message", "subtype": f"message_{'deleted' if text is None else 'changed'}"}
    inner |= {"channel": about["channel"], "channel_type": "channel", "ts": ts, "event_ts": ts, **change}
    envelope = {"type": "event_callback", "team_id": "T1", "event_id": f"Ev{ts}.edit"}
    return {**envelope, "event_time": int(float(ts)), "event": inner}


async def ends(f: Any, event: Any) -> list[tuple[str, str | None]]:
    """Return outcome and reason of each event about a message, once none is live."""
    ts = event.payload["event"]["ts"]
    await f.sleep(5)
    rows = await f.sql(
        "select outcome, reason from agent.event_hist where kind = 'slack.app_mention'"
        " and event->'event'->>'ts' = $1 order by id",
        ts,
    )
    return [tuple(row) for row in rows]


@virtual
async def test_an_edited_message_is_answered_as_it_is_now_and_a_deleted_one_is_not() -> None:
    turns = Turns()
    async with fleet(turns.handlers, settings=MODEL) as f:
        event = await f.mention("old")
        await f.until(lambda: turns.begun == ["old"])
        await (await f.post(edit(f, event, "new"))).result()
        turns.end("new")
        both = [("cancelled", "cancelled while running by U1: edited in Slack"), ("completed", None)]
        assert await ends(f, event) == both
        await (await f.post(edit(f, event, "old"))).result()  # it is answered
        assert await ends(f, event) == both
        assert turns.begun == ["old", "new"]
        assert [each["text"] for each in f.slack.messages] == ["new"]
        deleted = await f.mention("gone")
        await f.until(lambda: "gone" in turns.begun)
        await (await f.post(edit(f, deleted, None))).result()
        assert await ends(f, deleted) == [("cancelled", "cancelled while running by U1: deleted in Slack")]


@virtual
async def test_a_mention_that_waits_behind_another_one_is_edited_and_another_is_deleted() -> None:
    turns = Turns()
    async with fleet(turns.handlers, settings=MODEL) as f:
        first = await f.mention("first")
        await f.until(lambda: turns.begun == ["first"])
        second = await f.mention("second", thread=first)
        third = await f.mention("third", thread=first)
        await (await f.post(edit(f, second, "new"))).result()
        await (await f.post(edit(f, third, None))).result()
        assert await ends(f, third) == [("cancelled", "cancelled by U1: deleted in Slack")]
        turns.end("first")
        turns.end("new")
        assert [end for end, _ in await ends(f, second)] == ["cancelled", "completed"]
        assert [end for end, _ in await ends(f, first)] == ["completed"]
        assert turns.begun == ["first", "new"]


@virtual
async def test_of_two_edits_the_later_one_counts_in_either_order() -> None:
    turns = Turns()
    async with fleet(turns.handlers, settings=MODEL) as f:
        event = await f.mention("old")
        await f.until(lambda: turns.begun == ["old"])
        earlier = edit(f, event, "earlier")
        await f.sleep(1)
        await (await f.post(edit(f, event, "later"))).result()
        await f.until(lambda: turns.begun == ["old", "later"])
        await (await f.post(earlier)).result()
        turns.end("later")
        assert [end for end, _ in await ends(f, event)] == ["cancelled", "completed"]
        assert turns.begun == ["old", "later"]


@virtual
async def test_edits_are_ignored_where_the_setting_says_so_or_no_model_answers() -> None:
    for settings in ({**MODEL, "SURELANE_MODEL_EDITED": "ignore"}, {}):
        turns = Turns()
        async with fleet(turns.handlers, settings=settings) as f:
            event = await f.mention("old")
            await f.until(partial(len, turns.begun))
            assert await (await f.post(edit(f, event, "new"))).result() == {"unhandled": "no turn"}
            turns.end("old")
            assert await ends(f, event) == [("completed", None)]
            assert [each["text"] for each in f.slack.messages] == ["old"]


@virtual
async def test_edits_reach_a_teams_handlers_and_no_turn_is_cancelled() -> None:
    handlers = Handlers()

    @handlers.on("slack.app_mention")
    async def mentioned(_: Event, __: Context) -> None: ...

    @handlers.edited("typo")
    async def edited(event: Event, ctx: Context) -> None:
        await ctx.slack.reply(event, f"edited: {edited_message(event.slack)['text']}")

    @handlers.deleted("typo")
    async def deleted(event: Event, ctx: Context) -> None:
        await ctx.slack.reply(event, f"deleted: {edited_message(event.slack)['text']}")

    async with fleet(handlers, settings=MODEL) as f:
        event = await f.mention("a typo")
        await event.result()
        for text in ("a typo", None):
            await (await f.post(edit(f, event, text))).result()
        threads = {(each["thread_ts"], each["text"]) for each in f.slack.messages}
        ts = event.payload["event"]["ts"]
        assert threads == {(ts, "edited: a typo"), (ts, "deleted: a typo")}
        other = await f.mention("hello")
        fell_back = await (await f.post(edit(f, other, "right"))).result()  # no route takes it
        assert fell_back == {}
        assert await ends(f, other) == [("completed", None)]


@virtual
@pytest.mark.parametrize("rule", ["restart", "ignore"])
@pytest.mark.parametrize("when", ["waiting", "held", "running", "answered"])
async def test_a_mention_that_slack_delivers_again_follows_the_rule_of_edits(when: str, rule: str) -> None:
    turns = Turns()
    async with fleet(turns.handlers, settings={**MODEL, "SURELANE_MODEL_EDITED": rule}) as f:
        first = await f.mention("first")
        if when != "held":  # else both are handed over together
            await f.until(lambda: turns.begun == ["first"])
        event = await f.mention("old", thread=first)
        if when in ("running", "answered"):
            turns.end("first")
            await f.until(lambda: "old" in turns.begun)
        if when == "answered":
            turns.end("old")
            await event.result()
        ts = f.slack.next_ts()
        edits = [
            {**event.payload["event"], "text": text, "event_ts": ts, "edited": {"user": "U1", "ts": ts}}
            for text in ("old", "new", "new")
        ]
        for nth, inner in enumerate(edits):
            await f.post({**event.payload, "event_id": f"Ev{nth}", "event": inner})
        # An app that takes message_changed hears of the same edit twice.
        await f.post(edit(f, event, "new"))
        for text in ("first", "old", "new"):
            await f.sleep(5)
            turns.end(text)
        await ends(f, event)
        replaced = rule == "restart" and when != "answered"
        answers = [each["text"] for each in f.slack.messages]
        assert answers == ["first", "new" if replaced else "old"]
        assert turns.begun == [
            "first",
            *(["old"] if when != "waiting" or not replaced else []),
            *["new"] * replaced,
        ]

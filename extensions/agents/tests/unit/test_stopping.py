"""Slack's Stop cancels the turns of its thread, in virtual time; what "stop" is, and who talks with whom."""

from typing import Any

import pytest

from extensions.agents.tests.unit.test_edits import MODEL, Turns
from surelane.testing import fleet, virtual
from surelane_agents.people.following import says_stop, talking
from surelane_agents.reply import session


def stop(f: Any, event: Any, **more: str) -> dict[str, Any]:
    """Return what Slack posts when U2 presses Stop in the thread of a message."""
    about, ts = event.payload["event"], f.slack.next_ts()
    inner = {"type": "agent_session_stopped", "channel": about["channel"], "user": "U2", "event_ts": ts}
    inner |= {"thread_ts": about.get("thread_ts") or about["ts"], "streaming_message_ts": [], **more}
    return {**event.payload, "event_id": f"Ev{ts}", "event_time": int(float(ts)), "event": inner}


async def outcome(f: Any, event: Any) -> tuple[str, str | None]:
    await f.sleep(60)
    found = "select outcome, reason from agent.event_hist where id = $1"
    ((ended, reason),) = await f.sql(found, event.id)
    return ended, reason


@virtual
@pytest.mark.parametrize("at", ["start", "end"])
async def test_a_turn_is_stopped_and_said_to_be_once_although_the_worker_dies(at: str) -> None:
    turns = Turns()
    turns.handlers.include(session.handlers)
    async with fleet(turns.handlers, settings=MODEL) as f:
        event = await f.mention("one")
        await f.until(lambda: turns.begun == ["one"])
        waiting = await f.mention("two", thread=event)
        with f.killed_at(at):
            await f.post(stop(f, event))
            await f.sleep(60)
        turns.end("two")
        ended, reason = await outcome(f, event)
        assert (ended, reason) == ("cancelled", "cancelled while running by U2: stopped in Slack")
        assert (await outcome(f, waiting))[0] == "completed", "what waits is not stopped"
        assert [each["text"] for each in f.slack.messages if "Stopped" in each["text"]] == [
            "Stopped by <@U2>."
        ]


@virtual
async def test_a_turn_in_direct_messages_is_stopped_and_no_other_of_them() -> None:
    turns = Turns()
    turns.handlers.include(session.handlers)
    async with fleet(turns.handlers, settings=MODEL) as f:
        first = await f.mention("zero")
        turns.end("zero")
        said = []
        for text in ("one", "two"):
            about = {name: first.payload["event"][name] for name in ("type", "user")}
            ts = f.slack.next_ts()
            inner = {**about, "channel": "D1", "channel_type": "im", "ts": ts, "event_ts": ts, "text": text}
            said.append(await f.post({**first.payload, "event_id": f"Ev{text}", "event": inner}))
        await f.until(lambda: "one" in turns.begun)
        assert await (await f.post(stop(f, said[1]))).result() == {"stopped": None}
        assert await (await f.post(stop(f, said[0]))).result() == {"stopped": "running"}
        turns.end("two")
        assert [(await outcome(f, each))[0] for each in said] == ["cancelled", "completed"]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("stop", True),
        ("*Stop!*", True),
        ("<@U1> STOP.", True),
        ("stop it", False),
        ("", False),
        ("nonstop", False),
    ],
)
def test_stop_is_a_whole_message(text: str, whole: bool) -> None:
    assert says_stop({"text": text}) is whole


def test_two_people_talk_until_a_third_one_writes_or_the_agent_is_named() -> None:
    ada, grace, third = ({"user": user, "text": "so"} for user in ("U1", "U2", "U3"))
    asks = {"user": "U1", "text": "<@U2> and you?"}
    for said, pair in (
        ([ada, grace], set()),
        ([asks], {"U1", "U2"}),
        ([asks, grace, ada], {"U1", "U2"}),
        ([asks, grace, third], set()),
        ([asks, {"user": "U2", "text": "<@UBOT> so?"}], set()),
        ([asks, third, {"user": "U1", "text": "<!subteam^S1> look"}], {"U1", "S1"}),
    ):
        assert talking(said, "UBOT") == pair

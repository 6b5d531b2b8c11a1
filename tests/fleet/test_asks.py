"""Questions in Slack: buttons, menus, modals, and the Stop button."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, tzinfo
from typing import Any

import pytest

from surelane.testing import fleet, virtual
from surelane_encryption.keys import new_key
from surelane_worker import Context, Event, Handlers
from surelane_worker.builtin import questions
from surelane_worker.worker_settings import WorkerSettings

handlers = Handlers()
OVER = "This question is over."
SAID = ["before", "in a step", "Deploy?", "after"]


@handlers.on("slack.app_mention")
async def mentioned(event: Event, ctx: Context) -> Any:
    """Ask as the text says, with a reply before and after."""
    words = event.slack["text"].split()
    await ctx.slack.reply(event, "before")
    if "stoppable" in words:
        async with ctx.stoppable(event):
            await asyncio.sleep(60 if "long" in words else 0)
        return "ended"
    await ctx.step("in a step", ctx.slack.reply, event, "in a step")
    choices = [f"v{number}" for number in range(7)] if "menu" in words else ["Approve", "Reject"]
    if "raced" in words:
        asking = asyncio.create_task(ctx.ask(event, "Deploy?", choices))
        await asyncio.wait({asking, asyncio.create_task(ctx.sleep("50ms"))}, return_when="FIRST_COMPLETED")
        return f"answered: {asking.done()}"
    by: Any = (lambda user: user == event.slack["user"]) if "judged" in words else None
    answer = await ctx.ask(
        event,
        "Deploy?",
        None if "text" in words else choices,
        timeout="1m" if "timeout" in words else None,
        by=event.slack["user"] if "mine" in words else by,
        blocking="blocking" in words,
        written={"Reject": "It is &"} if "written" in words else None,
    )
    await ctx.slack.reply(event, "after")
    said = None if answer is None else [answer.choice, answer.user]
    return [*said, answer.text] if said and answer and answer.text else said


class Thread:
    """People who answer the bot's questions. ``U1`` mentions it."""

    def __init__(self, fleet: Any) -> None:
        self.f = fleet

    async def question(self, text: str) -> tuple[Any, dict[str, Any]]:
        """Mention the bot; return the event and the message with the question."""
        event = await self.f.mention(text)
        await self.f.until(event.suspended)
        return event, self.message(event)

    def message(self, event: Any) -> dict[str, Any]:
        """Return the latest message of an event with buttons."""
        mine = f"surelane:{event.id}:"
        found = [
            each
            for each in self.f.slack.messages
            if any(block.get("block_id", "").startswith(mine) for block in each.get("blocks") or [])
        ]
        return found[-1]  # type: ignore[no-any-return]

    async def click(self, message: dict[str, Any], number: int = 0, user: str = "U1", **other: Any) -> Any:
        """Press a button, or choose from a menu; return the event. ``other``: fields of the payload."""
        block = message["blocks"][-1]
        element = block["elements"][0 if "options" in block["elements"][0] else number]
        action = {key: element[key] for key in ("type", "action_id", "value") if key in element}
        if "options" in element:
            action["selected_option"] = element["options"][number]
        action["block_id"] = other.pop("block_id", block["block_id"])
        about = {key: message[key] for key in ("ts", "thread_ts", "text")}
        place = {"channel": {"id": message["channel"]}, "message": about}
        return await self.post("block_actions", user, **{**place, "actions": [action], **other})

    async def write(self, view: dict[str, Any], text: str, user: str = "U1") -> Any:
        """Send a modal."""
        state = {"values": {"answer": {"text": {"type": "plain_text_input", "value": text}}}}
        return await self.post("view_submission", user, view={**view, "id": "V1", "state": state})

    async def post(self, kind: str, user: str, **payload: Any) -> Any:
        trigger = f"{len(self.f.slack.calls)}.{self.f.slack.next_ts()}"
        given = {"type": kind, "user": {"id": user}, "team": {"id": "T1"}, "trigger_id": trigger}
        return await self.f.post({**given, **payload})

    def views(self) -> list[Any]:
        """Return the modals that were opened."""
        views = [given["view"] for method, given in self.f.slack.calls if method == "views.open"]
        return [json.loads(view) if isinstance(view, str) else view for view in views]

    def private(self) -> list[tuple[str, str]]:
        """Return what was said to one person alone."""
        told = [given for method, given in self.f.slack.calls if method == "chat.postEphemeral"]
        return [(given["user"], given["text"]) for given in told]

    async def closed(self, message: dict[str, Any]) -> str:
        """Wait until the buttons of a message are gone, and return what it says instead."""
        await self.f.until(lambda: message["blocks"][-1]["type"] == "context")
        assert message["blocks"][0]["text"]["text"] == "Deploy?"
        return str(message["blocks"][-1]["elements"][0]["text"])

    async def closings(self, event: Any) -> int:
        """Return how many jobs the event's end stored to close what was left in Slack."""
        count = "select count(*) from agent.job where kind = 'surelane.close' and enqueued_by = $1"
        return int((await self.f.sql(count, event.key))[0][0])


@asynccontextmanager
async def talking(**settings: str) -> AsyncIterator[tuple[Any, Thread]]:
    async with fleet(handlers, settings=settings) as f:
        yield f, Thread(f)


@virtual
async def test_first_click_is_the_answer_and_the_second_is_told() -> None:
    async with talking() as (f, people):
        for text in ("buttons", "buttons blocking"):
            event, message = await people.question(text)
            assert (await event.row())["claimed_by"] is None
            other = await f.mention("stoppable", thread=event)
            if text == "buttons":
                assert await other.result() == "ended"  # the thread goes on
            buttons = {**message, "blocks": list(message["blocks"])}
            assert await (await people.click(message, 1, "U2")).result() == {"chosen": "Reject"}
            late = await people.click(buttons, 0)
            said = "*Reject*, says <@U2>."
            assert await late.result() == {"told": f"This is decided: {said}"}
            assert await event.result() == ["Reject", "U2"]
            assert people.private()[-1] == ("U1", f"This is decided: {said}")
            assert await people.closed(message) == said
            assert f.replies(event) == SAID
            assert await people.closings(event) == 0
        assert len(people.private()) == 2
        # A new run keeps the steps before the question, and asks it again.
        anew = await f.rerun(event, "ask:1")
        await f.until(anew.suspended)
        await people.click(people.message(anew), 0)
        assert await anew.result() == ["Approve", "U1"]
        assert f.replies(anew) == ["before", "Deploy?", "after"]


@virtual
async def test_answer_is_chosen_from_a_menu_or_written_in_a_modal() -> None:
    async with talking() as (f, people):
        event, message = await people.question("menu")
        await people.click(message, 6)
        assert await event.result() == ["v6", "U1"]
        event, message = await people.question("text")
        await (await people.click(message)).result()
        await people.write(people.views()[0], "R&D <!here>")
        assert await event.result() == ["R&D <!here>", "U1"]
        assert await people.closed(message) == "*R&amp;D &lt;!here&gt;*, says <@U1>."
        # A call after the end is told so, although the steps are gone.
        event, message = await people.question("text")
        await (await people.click(message)).result()
        await f.cancel(event)
        await people.closed(message)
        await f.sql("delete from agent.step where event_id = $1", event.id)  # as retention does
        assert await (await people.write(people.views()[1], "too late")).result() == {"told": OVER}
        assert people.private() == [("U1", OVER)]


@virtual
async def test_a_choice_may_take_a_text() -> None:
    async with talking() as (_, people):
        for text in ("written", "written judged", "written"):
            event, message = await people.question(text)
            opened = len(people.views())
            await (await people.click(message, 1)).result()
            (view,) = people.views()[opened:]
            (element,) = [each["element"] for each in view["blocks"] if each["type"] == "input"]
            assert element["initial_value"] == "It is &"
            assert (await event.row())["claimed_by"] is None, "a click alone answers nothing"
            await people.write(view, "It is <late>")
            assert await event.result() == ["Reject", "U1", "It is <late>"]
            assert await people.closed(message) == "*Reject*, says <@U1>: It is &lt;late&gt;"
        event, message = await people.question("written")
        await people.click(message, 0)
        assert await event.result() == ["Approve", "U1"]


@virtual
async def test_others_may_not_answer() -> None:
    async with talking() as (f, people):
        for text, told in (
            ("mine", "Only <@U1> may answer this."),
            ("judged", "You may not answer this question."),
        ):
            event, message = await people.question(text)
            await (await people.click(message, 0, "U2")).result()
            await f.until(lambda told=told: people.private()[-1:] == [("U2", told)])
            await people.click(message)
            assert await event.result() == ["Approve", "U1"]
            assert await people.closed(message) == "*Approve*, says <@U1>."
        assert len(people.private()) == 2


@virtual
@pytest.mark.parametrize("error", ["user_not_in_channel", "some_new_refusal", "ratelimited"])
async def test_a_note_that_slack_refuses_fails_nothing(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads a public channel without being in it can click, and cannot be told anything there."""
    async with talking() as (f, people):
        take, refused = f.slack.take, list[dict[str, Any]]()

        def refusing(host: Any, method: str, given: dict[str, Any]) -> dict[str, Any]:
            if method != "chat.postEphemeral" or (error == "ratelimited" and refused):
                return take(host, method, given)  # type: ignore[no-any-return]
            refused.append(given)
            return {"ok": False, "error": error}

        monkeypatch.setattr(f.slack, "take", refusing)
        event, message = await people.question("judged")
        await (await people.click(message, 0, "U2")).result()
        await f.until(lambda: refused)
        await f.until(event.suspended)
        await people.click(message)
        assert await event.result() == ["Approve", "U1"]
        assert len(people.private()) == (error == "ratelimited"), "what is gone later is tried again"


class VirtualDatetime(datetime):
    """Shows virtual time."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "VirtualDatetime":
        return cls.fromtimestamp(time.time(), tz)


@virtual
async def test_click_waits_an_hour_for_its_question_if_not_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that asked died before it stored the question, and the next attempt may ask it again."""
    monkeypatch.setattr(questions, "datetime", VirtualDatetime)
    async with talking(SURELANE_POLL_INTERVAL="1m") as (f, people):
        event, message = await people.question("buttons")
        for age in (0, 3590):
            asking = await f.enqueue("nothing", run_in="9h")
            at, block = int(time.time()) - age, f"surelane:{asking.id}:ask:1"
            click = await people.click(message, block_id=block, event_time=at)
            await f.sleep(20)
            assert await click.ended() is None
            if age == 0:
                assert len((await click.row())["claimed"]) >= 4
                await f.cancel(asking)
            assert await click.result() == {"told": OVER}
        assert len((await click.row())["claimed"]) == 2
        assert people.private() == [("U1", OVER)] * 2
        # A click elsewhere answers no question: another channel's message may name the same one.
        click = await people.click(message, channel={"id": "C9"})
        assert await click.result() == {"unhandled": "not where it was asked"}
        buttons = {**message, "blocks": list(message["blocks"])}
        await f.cancel(event)
        assert await people.closed(message) == "This has ended."
        assert await (await people.click(buttons)).result() == {"told": OVER}


@virtual
async def test_stop_button_cancels_the_handler_and_goes_with_it() -> None:
    async with talking() as (f, people):
        event = await f.mention("stoppable long")
        await f.until(event.steps)
        message = people.message(event)
        await (await people.click(message, 0, "U2")).result()
        row = await f.until(event.ended)
        assert (row["outcome"], row["reason"]) == (
            "cancelled",
            "cancelled while running by U2: stopped in Slack",
        )
        assert message["blocks"][-1]["elements"][0]["text"] == "Stopped by <@U2>."
        assert await people.closings(event) == 0
        event = await f.mention("stoppable")
        assert await event.result() == "ended"
        assert f.replies(event) == ["before"]
        assert await people.closings(event) == 0
        event = await f.mention("stoppable long")
        await f.until(event.steps)
        message = people.message(event)
        await f.cancel(event)
        await f.until(lambda: message["blocks"][-1]["elements"][0]["text"] == "This has ended.")


@virtual
async def test_question_of_an_ended_event_is_closed() -> None:
    async with talking() as (f, people):
        for text in ("buttons", "menu", "text", "judged"):
            event, message = await people.question(text)
            await f.cancel(event)
            assert await people.closed(message) == "This has ended."
        # The handler waited for the question or a time, whichever came first.
        event = await f.mention("raced")
        assert await event.result() == "answered: False"
        message = next(each for each in f.slack.messages[::-1] if each["text"] == "Deploy?")
        assert await people.closed(message) == "This has ended."
        event, message = await people.question("timeout")
        assert await event.result() is None
        assert await people.closed(message) == "No answer came in time."


@virtual
async def test_encrypted_question_is_closed() -> None:
    settings = {"SURELANE_ENCRYPTION_KEYS": new_key(), "SURELANE_ENCRYPT_EVENTS": "true"}
    async with talking(**settings) as (f, people):
        event, message = await people.question("buttons")
        await f.cancel(event)
        ((payload,),) = await f.sql("select payload from agent.job where kind = 'surelane.close'")
        assert "Deploy?" not in payload
        assert await people.closed(message) == "This has ended."


@virtual
async def test_event_that_runs_again_asks_again_or_goes_on_with_the_answer_that_it_had() -> None:
    again = "select agent.rerun_events(array[$1::int8])"
    async with talking() as (f, people):
        event, message = await people.question("judged")
        await (await people.click(message, 0, "U2")).result()
        await f.until(people.private)
        await f.until(event.suspended)
        await f.cancel(event)
        await people.closed(message)
        await f.sql(again, event.id)
        await f.until(event.suspended)
        assert f.replies(event)[-2:] == ["before", "Deploy?"]
        await people.click(people.message(event))
        assert await event.result() == ["Approve", "U1"]

        event, message = await people.question("buttons")
        await f.kill()  # no attempt takes the answer before the event ends
        given = json.dumps({"choice": "Approve", "user": "U1", "click": "k"})
        await f.sql("select agent.send_signal($1, 'ask:1', $2, true, 'U1')", event.id, given)
        await f.cancel(event, by="ops")
        assert await people.closings(event) == 0
        await f.sql(again, event.id)
        f.start()
        assert await event.result() == ["Approve", "U1"]
        assert f.replies(event).count("Deploy?") == 1


@virtual
async def test_question_that_slack_would_refuse_fails_its_event_at_once_and_says_which_part() -> None:
    team = Handlers()
    wrong: dict[str, dict[str, Any]] = {
        "a choice is a text of 1 to 75": {"choices": ["yes", "x" * 76]},
        "characters, not ''": {"choices": ["yes", ""]},
        "characters, not 7": {"choices": [7]},
        "1 to 100 choices": {"choices": [str(number) for number in range(101)]},
        "a list of": {"choices": "yes"},
        "choices of a question differ": {"choices": ["yes", "yes"]},
        "'Maybe' takes a text": {"choices": ["yes"], "written": {"Maybe": ""}},
        "'yes' begins with a text of at most 3,000": {"choices": ["yes"], "written": {"yes": "x" * 3_001}},
        "name of a question": {"name": "x" * 101},
        "1 to 40,000 characters": {"text": "x" * 40_001},
        "blocks of its own": {"blocks": []},
        "timeout": {"timeout": "soon"},
    }

    @team.on("slack.app_mention")
    async def asks_wrongly(event: Event, ctx: Context) -> None:
        given = wrong[event.slack["text"]]
        await ctx.ask(event, given.pop("text", "Deploy?"), **given)

    async with fleet(team) as f:
        for part in wrong:
            event = await f.mention(part)
            row = await f.until(event.ended)
            assert (row["outcome"], row["reason"], row["attempts"]) == ("failed", "ask_refused", 1), part
            assert part in row["errors"][0]["message"]
        said = {each["text"] for each in f.slack.messages}
        assert said == {WorkerSettings.model_fields["failure_reply"].default}

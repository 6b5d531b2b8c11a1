"""Questions in a simulated Slack: buttons, menus, modals, and the Stop button."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.encryption.keys import new_key
from surelane_dev.simulator.posting.payloads import action_payload, view_payload
from surelane_dev.simulator.views import View
from surelane_dev.simulator.workspace.model import Message
from surelane_operator.changes import Changes
from tests.processes import Service, until
from tests.system.shared import shared_connection, shared_slack
from tests.system.slack_stand import Stand, slack_stand
from tests.system.test_durable import HANDLERS, result_of, suspended
from tests.system.worker import ended, live, worker

pytestmark = pytest.mark.usefixtures("running")
QUESTION = 2
"""Where the question is among the replies: before it are one of the handler's own, and one of a step's."""
connection, slack = shared_connection, shared_slack


@pytest.fixture(scope="module")
async def running(shared_database: str, slack: Stand) -> AsyncIterator[Service]:
    settings = {"SURELANE_HANDLERS": HANDLERS, "SLACK_BOT_TOKEN": "xoxb-any", "SURELANE_CONCURRENCY": "4"}
    async with worker(shared_database, SLACK_API_URL=slack.api, **settings) as started:
        yield started


class Person:
    """Somebody who clicks."""

    def __init__(self, slack: Stand, name: str) -> None:
        self.slack = slack
        user = slack.simulator.workspace.user(name)
        assert user is not None
        self.user = user

    async def click(
        self,
        message: Message,
        element: dict[str, Any],
        block: str,
        *,
        at: datetime | None = None,
        **chosen: Any,
    ) -> int:
        """Click on an element of a message; return the event's id."""
        simulator = self.slack.simulator
        action = {key: element[key] for key in ("type", "action_id", "value") if key in element}
        payload = action_payload(
            simulator.workspace,
            simulator.interactions,
            message=message,
            user=self.user,
            action=action | {"block_id": block} | chosen,
        )
        payload |= {} if at is None else {"event_time": int(at.timestamp())}
        return await self.slack.queue.insert_event(json.dumps(payload))

    def written(self, view: View, text: str) -> str:
        """Return the payload of a modal that this person sends."""
        simulator, answer = self.slack.simulator, {"type": "plain_text_input", "value": text}
        content = view.content | {"state": {"values": {"answer": {"text": answer}}}}
        return json.dumps(
            view_payload(
                simulator.workspace,
                simulator.interactions,
                kind="view_submission",
                view=content,
                user=self.user,
            )
        )

    async def press(self, message: Message, number: int = 0) -> int:
        """Press a button of a message."""
        actions = message.blocks[-1]
        return await self.click(message, actions["elements"][number], actions["block_id"])


def replies(slack: Stand, asked: Message) -> list[Message]:
    """Return the messages in a thread."""
    said = slack.simulator.workspace.channels[asked.channel].replies(asked.ts)
    return [message for message in said if message.visible_to is None]


def private(slack: Stand, asked: Message) -> list[str]:
    """Return what was said to one person alone."""
    room = slack.simulator.workspace.channels[asked.channel]
    said = [message for message in room.messages.values() if message.thread_ts == asked.ts]
    return [message.text for message in said if message.visible_to is not None]


async def closed(message: Message) -> None:
    """Wait until a message says that its event has ended."""
    await until(lambda: message.blocks[-1]["elements"][0].get("text") == "This has ended.")


async def closings(connection: Connection, identity: int) -> int:
    """Return how many jobs the event's end stored to close what was left in Slack."""
    count = """
        select count(*) from agent.job
        where kind = 'surelane.close'
        and enqueued_by = (select coalesce(item_key, id::text) from agent.job where id = $1)
    """
    found: int = await connection.fetchval(count, identity)
    return found


async def question(slack: Stand, connection: Connection, text: str) -> tuple[int, Message, Message]:
    """Mention the bot; return the event's id, the mention and the question."""
    identity, asked = await slack.mention(text)
    await suspended(connection, identity)
    return identity, asked, replies(slack, asked)[QUESTION]


@pytest.mark.parametrize("text", ["buttons", "buttons blocking"])
async def test_first_click_is_the_answer_and_the_second_is_told(
    slack: Stand, connection: Connection, text: str
) -> None:
    identity, asked, message = await question(slack, connection, text)
    ada, bob = Person(slack, "ada"), Person(slack, "grace")
    buttons = message.blocks[-1]
    first = await bob.press(message, 1)
    assert await result_of(connection, first) == {"chosen": "Reject"}
    await ended(connection, await ada.click(message, buttons["elements"][0], buttons["block_id"]))
    assert await result_of(connection, identity) == ["Reject", bob.user.id]
    said = f"*Reject*, says <@{bob.user.id}>."
    assert private(slack, asked) == [f"This is decided: {said}"]
    assert message.blocks[-1]["elements"][0]["text"] == said
    assert [each.text for each in replies(slack, asked)] == ["before", "in a step", "Deploy?", "after"]
    assert await closings(connection, identity) == 0


async def test_new_run_answers_again_and_asks_a_forgotten_question_again(
    slack: Stand, connection: Connection
) -> None:
    identity, asked, message = await question(slack, connection, "buttons")
    ada = Person(slack, "ada")
    await ada.press(message)
    assert await result_of(connection, identity) == ["Approve", ada.user.id]
    said = ["before", "in a step", "Deploy?", "after"]
    anew = await Changes(connection).rerun_as_new(identity, from_step="ask:1")
    assert anew.id is not None
    await suspended(connection, anew.id)
    assert [each.text for each in replies(slack, asked)] == [*said, "before", "Deploy?"]
    await ada.press(replies(slack, asked)[-1], 1)
    assert await result_of(connection, anew.id) == ["Reject", ada.user.id]


async def test_menu(slack: Stand, connection: Connection) -> None:
    identity, _, message = await question(slack, connection, "menu")
    actions = message.blocks[-1]
    element = actions["elements"][0]
    ada = Person(slack, "ada")
    await ada.click(message, element, actions["block_id"], selected_option=element["options"][6])
    assert await result_of(connection, identity) == ["v6", ada.user.id]


async def test_text_is_written_in_a_modal(slack: Stand, connection: Connection) -> None:
    identity, _, message = await question(slack, connection, "text")
    ada = Person(slack, "ada")
    await ended(connection, await ada.press(message))
    (view,) = slack.simulator.interactions.views.values()
    await slack.queue.insert_event(ada.written(view, "two words"))
    assert await result_of(connection, identity) == ["two words", ada.user.id]


@pytest.mark.parametrize(
    ("text", "told"),
    [("mine", "Only <@{ada}> may answer this."), ("judged", "You may not answer this question.")],
)
async def test_others_may_not_answer(slack: Stand, connection: Connection, text: str, told: str) -> None:
    identity, asked, message = await question(slack, connection, text)
    ada, bob = Person(slack, "ada"), Person(slack, "grace")
    await ended(connection, await bob.press(message))
    await until(lambda: private(slack, asked) == [told.format(ada=ada.user.id)])
    await ada.press(message)
    assert await result_of(connection, identity) == ["Approve", ada.user.id]
    assert message.blocks[-1]["type"] == "context"


async def test_question_ends_with_its_timeout(slack: Stand, connection: Connection) -> None:
    identity, asked = await slack.mention("timeout")
    assert await result_of(connection, identity) is None
    message = replies(slack, asked)[QUESTION]
    assert message.blocks[-1]["elements"][0]["text"] == "No answer came in time."


async def test_click_after_the_end_is_told(slack: Stand, connection: Connection) -> None:
    identity, asked, message = await question(slack, connection, "buttons")
    buttons = message.blocks[-1]
    await slack.queue.cancel(str(identity))
    await closed(message)
    late = await Person(slack, "ada").click(message, buttons["elements"][0], buttons["block_id"])
    assert await result_of(connection, late) == {"told": "This question is over."}
    assert private(slack, asked) == ["This question is over."]


async def test_click_waits_until_its_question_is_stored_or_over(slack: Stand, connection: Connection) -> None:
    """The worker that asked died before it stored the question, and the next attempt may ask it again."""
    _, asked, message = await question(slack, connection, "buttons")
    asking = await slack.queue.enqueue("nothing", run_at=datetime.now(UTC) + timedelta(hours=1))
    click = await Person(slack, "ada").click(
        message, message.blocks[-1]["elements"][0], f"surelane:{asking}:ask:1"
    )
    async with asyncio.timeout(60):
        while len((await live(connection, click))["claimed"]) < 4:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.05)
    await slack.queue.cancel(str(asking))
    assert await result_of(connection, click) == {"told": "This question is over."}
    assert private(slack, asked) == ["This question is over."]


async def test_text_written_after_the_end_is_told(slack: Stand, connection: Connection) -> None:
    identity, asked, message = await question(slack, connection, "text")
    ada = Person(slack, "ada")
    await ended(connection, await ada.press(message))
    view = list(slack.simulator.interactions.views.values())[-1]
    await slack.queue.cancel(str(identity))
    await closed(message)
    await connection.execute("delete from agent.step where event_id = $1", identity)  # as retention does
    late = await slack.queue.insert_event(ada.written(view, "too late"))
    assert await result_of(connection, late) == {"told": "This question is over."}
    assert private(slack, asked) == ["This question is over."]


async def test_click_on_a_question_that_is_never_stored_waits_an_hour(
    slack: Stand, connection: Connection
) -> None:
    """A handler that was changed meanwhile may not ask it again, and its event may live for months."""
    _, asked, message = await question(slack, connection, "buttons")
    asking = await slack.queue.enqueue("nothing", run_at=datetime.now(UTC) + timedelta(hours=9))
    before = datetime.now(UTC) - timedelta(hours=1)
    click = await Person(slack, "ada").click(
        message, message.blocks[-1]["elements"][0], f"surelane:{asking}:ask:1", at=before
    )
    assert await result_of(connection, click) == {"told": "This question is over."}
    assert private(slack, asked) == ["This question is over."]


async def test_click_elsewhere_answers_no_question(slack: Stand, connection: Connection) -> None:
    """Another channel's message may name the same question."""
    _, _, message = await question(slack, connection, "buttons")
    _, _, other = await question(slack, connection, "buttons")
    other.channel = next(each for each in slack.simulator.workspace.channels if each != message.channel)
    buttons = message.blocks[-1]
    click = await Person(slack, "ada").click(other, buttons["elements"][0], buttons["block_id"])
    assert await result_of(connection, click) == {"unhandled": "not where it was asked"}


async def test_stop_button_cancels_the_handler(slack: Stand, connection: Connection) -> None:
    identity, asked = await slack.mention("stoppable long")
    await until(lambda: len(replies(slack, asked)) == 2)
    message, bob = replies(slack, asked)[1], Person(slack, "grace")
    while not json.loads(await connection.fetchval("select agent.list_steps($1)", identity)):
        pass
    await ended(connection, await bob.press(message))
    row = await ended(connection, identity)
    assert row["outcome"] == "cancelled"
    assert row["reason"] == f"cancelled while running by {bob.user.id}: stopped in Slack"
    assert message.blocks[-1]["elements"][0]["text"] == f"Stopped by <@{bob.user.id}>."
    assert await closings(connection, identity) == 0


async def test_stop_button_goes_with_its_handler(slack: Stand, connection: Connection) -> None:
    identity, asked = await slack.mention("stoppable")
    assert await result_of(connection, identity) == "ended"
    assert [each.text for each in replies(slack, asked)] == ["before"]
    assert await closings(connection, identity) == 0


@pytest.mark.parametrize("text", ["buttons", "menu", "text", "judged"])
async def test_question_of_a_cancelled_event_is_closed(
    slack: Stand, connection: Connection, text: str
) -> None:
    identity, _, message = await question(slack, connection, text)
    await slack.queue.cancel(str(identity))
    await closed(message)
    assert message.blocks[0]["text"]["text"] == "Deploy?"


async def test_question_of_a_completed_event_is_closed(slack: Stand, connection: Connection) -> None:
    """The handler waited for the question or a time, whichever came first."""
    identity, asked = await slack.mention("raced")
    assert await result_of(connection, identity) == "answered: False"
    await closed(replies(slack, asked)[QUESTION])


async def test_stop_button_of_a_cancelled_event_is_closed(slack: Stand, connection: Connection) -> None:
    identity, asked = await slack.mention("stoppable long")
    while not json.loads(await connection.fetchval("select agent.list_steps($1)", identity)):
        pass
    await slack.queue.cancel(str(identity))
    await closed(replies(slack, asked)[1])


async def test_event_that_runs_again_asks_its_closed_question_again(
    slack: Stand, connection: Connection
) -> None:
    identity, asked, message = await question(slack, connection, "judged")
    grace, ada = Person(slack, "grace"), Person(slack, "ada")
    await ended(connection, await grace.press(message))
    await until(lambda: bool(private(slack, asked)))
    await suspended(connection, identity)
    await slack.queue.cancel(str(identity))
    await closed(message)
    await Changes(connection).rerun([identity])
    await suspended(connection, identity)
    assert [each.text for each in replies(slack, asked)][-2:] == ["before", "Deploy?"]
    await ada.press(replies(slack, asked)[-1])
    assert await result_of(connection, identity) == ["Approve", ada.user.id]


async def test_event_that_runs_again_goes_on_with_the_answer_that_it_had(
    slack: Stand, connection: Connection
) -> None:
    identity, asked, message = await question(slack, connection, "buttons")
    async with connection.transaction():  # no attempt takes the answer before the event ends
        await connection.execute(
            "select agent.send_signal($1, 'ask:1', $2, true, 'U1')",
            identity,
            json.dumps({"choice": "Approve", "user": "U1", "click": "k"}),
        )
        await connection.execute("select agent.cancel_job($1, 'ops', null, false)", identity)
    assert await closings(connection, identity) == 0
    await Changes(connection).rerun([identity])
    assert await result_of(connection, identity) == ["Approve", "U1"]
    assert replies(slack, asked)[QUESTION] is message


async def test_encrypted_question_is_closed(database: str) -> None:
    settings = {"SURELANE_ENCRYPTION_KEYS": new_key(), "SURELANE_ENCRYPT_EVENTS": "true"}
    connection = await asyncpg.connect(database)
    async with slack_stand(connection) as slack:
        api = {"SURELANE_HANDLERS": HANDLERS, "SLACK_BOT_TOKEN": "xoxb-any", "SLACK_API_URL": slack.api}
        async with worker(database, **api, **settings):
            identity, _, message = await question(slack, connection, "buttons")
            await slack.queue.cancel(str(identity))
            payload = await connection.fetchval("select payload from agent.job where kind = 'surelane.close'")
            assert "Deploy?" not in payload
            await closed(message)
    await connection.close()


async def test_question_holds_nothing_and_its_thread_goes_on(slack: Stand, connection: Connection) -> None:
    identity, asked, _ = await question(slack, connection, "buttons")
    assert (await live(connection, identity))["claimed_by"] is None
    other, _ = await slack.mention("stoppable", thread_ts=asked.ts)
    assert await result_of(connection, other) == "ended"

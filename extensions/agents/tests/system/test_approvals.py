"""What people may answer where a tool needs approval, and who they are."""

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from extensions.agents.tests.system.model_server import OURS, Desk, ModelServer, Reply, calls, says, settings
from extensions.agents.tests.system.shared import shared_desk, shared_model
from surelane_agents.people.approvals import ALWAYS, APPROVE, CHANGE, MOST_TRIES, REASON, REJECT
from surelane_dev.simulator.posting.payloads import Payloads
from surelane_dev.simulator.workspace.demo import workspace_of
from surelane_dev.simulator.workspace.model import Message, User
from tests.processes import Service, until
from tests.system.shared import shared_connection, shared_slack
from tests.system.slack_stand import Person, Stand
from tests.system.worker import ended, suspended, worker

connection, slack, model, desk = shared_connection, shared_slack, shared_model, shared_desk
MEAL = calls(("order", {"dish": "soup", "guests": 2}))


@pytest.fixture(scope="module", autouse=True)
async def running(shared_database: str, slack: Stand, model: ModelServer) -> AsyncIterator[Service]:
    given = settings(model, slack, **OURS, PYTHON=sys.executable)
    async with worker(shared_database, **given) as started:
        yield started


def buttons(question: Message) -> list[str]:
    return [each["text"]["text"] for each in question.blocks[-1]["elements"]]


async def asked(desk: Desk, plan: str, *answers: Reply, **where: Any) -> tuple[int, Message, Message]:
    """Let the model call a tool; return the turn, the message and the question."""
    identity, message = await desk.ask(plan, *answers, **where)
    return identity, message, await question(desk, identity, message)


async def question(desk: Desk, identity: int, message: Message) -> Message:
    await suspended(desk.connection, identity)
    return [each for each in desk.slack.replies(message) if "May I call" in each.text][-1]


async def choose(
    desk: Desk, question: Message, choice: str, name: str = "ada", text: str | None = None
) -> None:
    """Press a button; write the text in the modal that it opens."""
    person = Person(desk.slack, name)
    click = await person.press(question, buttons(question).index(choice))
    await ended(desk.connection, click)
    if text is not None:
        view = desk.slack.simulator.interactions.views.stack(person.user.id)[-1]
        await desk.slack.queue.insert_event(person.written(view, text))


async def test_arguments_are_changed_and_the_model_learns_it(desk: Desk) -> None:
    identity, _, meal = await asked(desk, "changed", MEAL, says("Ordered."))
    assert buttons(meal) == [APPROVE, REJECT, ALWAYS, REASON, CHANGE]
    await choose(desk, meal, CHANGE, "grace", '{"dish": "bread", "guests": 3}')
    assert (await desk.result(identity))["answer"] == "Ordered."
    changed, result = json.loads(desk.told("changed")[-1])
    assert (result, changed["arguments"]) == ("bread for 3", {"dish": "bread", "guests": 3})
    assert desk.slack.user("grace").id in changed["note"]


UNREAD = ["{", "[1]", "7"]


@pytest.mark.parametrize("text", UNREAD)
async def test_arguments_that_cannot_be_read_are_asked_for_again(desk: Desk, text: str) -> None:
    plan = f"unread-{UNREAD.index(text)}"
    identity, message, meal = await asked(desk, plan, MEAL, says("Ordered."))
    await choose(desk, meal, CHANGE, text=text)
    await until(lambda: len([each for each in desk.said(message) if "May I" in each]) == 2, what="the second")
    again = await question(desk, identity, message)
    assert again.text.startswith("These arguments cannot be read")
    await choose(desk, again, APPROVE)
    assert (await desk.result(identity))["answer"] == "Ordered."
    assert desk.told(plan)[-1] == "soup for 2"
    assert MOST_TRIES > 1


async def test_arguments_of_a_wrong_type_are_the_models_to_mend(desk: Desk) -> None:
    identity, _, meal = await asked(desk, "typed", MEAL, says("I cannot."))
    await choose(desk, meal, CHANGE, text='{"dish": "bread", "guests": "many"}')
    assert (await desk.result(identity))["answer"] == "I cannot."
    assert "guests" in desk.told("typed")[-1]
    assert not [step for step in await desk.steps(identity) if step.startswith("order ")]


async def test_the_model_gets_the_reason_of_a_rejection(desk: Desk) -> None:
    identity, _, meal = await asked(desk, "reason", MEAL, says("Then not."))
    await choose(desk, meal, REASON, text="The kitchen is closed.")
    assert (await desk.result(identity))["answer"] == "Then not."
    assert "because: The kitchen is closed." in desk.told("reason")[-1]


async def test_nobody_is_asked_again_in_the_thread_for_the_same_person_and_tool(desk: Desk) -> None:
    identity, message, meal = await asked(desk, "always", MEAL, MEAL, says("Ordered."))
    await choose(desk, meal, ALWAYS, "grace")
    assert (await desk.result(identity))["approved"] == [[message.user, "order"]]
    assert desk.told("always")[-2:] == ["soup for 2", "soup for 2"]
    # A turn without a question in between, then a turn that calls.
    await desk.turn("between", says("Yes?"), thread_ts=message.ts)
    result, _ = await desk.turn("later", MEAL, says("Again."), thread_ts=message.ts)
    assert (result["answer"], desk.told("later")[-1]) == ("Again.", "soup for 2")
    # Another tool, another person and another thread are asked about.
    for plan, tool, where in (
        ("tool", calls(("deploy", {"service": "api"})), {"thread_ts": message.ts}),
        ("person", MEAL, {"thread_ts": message.ts, "name": "katherine"}),
        ("thread", MEAL, {}),
    ):
        identity, _, shown = await asked(desk, plan, tool, says("No."), **where)
        await choose(desk, shown, REJECT)
        assert (await desk.result(identity))["answer"] == "No."
        assert "was rejected" in desk.told(plan)[-1]


async def test_a_job_that_names_nobody_has_no_standing_approval(desk: Desk) -> None:
    room = desk.slack.room()
    before = set(room.messages)
    identity = await desk.job("job", MEAL, says("Ordered."), channel=room.id)
    await suspended(desk.connection, identity)
    (shown,) = [each for ts, each in room.messages.items() if ts not in before]
    assert ALWAYS not in buttons(shown)
    await choose(desk, shown, APPROVE)
    assert (await desk.result(identity))["answer"] == "Ordered."


@pytest.mark.parametrize("sort", ["guest", "elsewhere", "robot"])
async def test_who_may_not_use_a_tool_does_not_approve_its_calls(desk: Desk, sort: str) -> None:
    workspace, room = desk.slack.simulator.workspace, desk.slack.room("support")
    if sort == "elsewhere":
        bakery = workspace_of("T0BAKERY09", "Bakery", None, workspace.app_id, ["Sarah Marks"])
        workspace.share(room, bakery)
        user = next(iter(bakery.people()))
    else:
        user = User(f"U0{sort.upper()}01", sort, sort, is_restricted=sort == "guest", is_bot=sort == "robot")
        workspace.users[user.id] = user
    room.members.add(user.id)
    identity, _, meal = await asked(desk, f"may-{sort}", MEAL, says("Then not."), channel="support")
    element, block = meal.blocks[-1]["elements"][0], meal.blocks[-1]["block_id"]
    action = {key: element[key] for key in ("type", "action_id", "value")} | {"block_id": block}
    notes = len(desk.slack.calls("chat.postEphemeral"))
    payloads = Payloads(workspace, desk.slack.simulator.interactions, user)
    await desk.slack.store(payloads.action(meal, action))
    told = ("You may not answer this question.", user.id)

    def refused() -> bool:
        # Slack does not tell people of another organization, as the simulator has it.
        said = [(each.text, each.visible_to) for each in room.messages.values()]
        return told in said or desk.slack.calls("chat.postEphemeral")[notes:] != []

    await until(refused, what="the refusal")
    await choose(desk, meal, REJECT, "grace")
    assert (await desk.result(identity))["answer"] == "Then not."
    assert not [step for step in await desk.steps(identity) if step.startswith("order ")]

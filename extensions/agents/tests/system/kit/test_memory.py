"""What agents remember of a person or a channel: told in other threads, shown, corrected, forgotten, erased."""

from typing import Any

import pytest

from extensions.agents.tests.system.model_server import ModelServer, calls, says
from surelane.testing import Bot, Slack, assert_replied
from surelane_agents import Agent, Tools
from surelane_agents.people import rules
from surelane_agents.people.rules import MEMORY, REMEMBERED
from surelane_agents.tools.memory import forget, remember
from surelane_dev.testing.database import connected
from surelane_worker import Handlers

TEA, NOON = "Ada likes tea.", "Lunch is at noon."


@pytest.fixture
def handlers() -> Handlers:
    tools, handlers = Tools(), Handlers()
    for each in (remember, forget):
        tools.add(each)
    handlers.include(rules.handlers)
    handlers.include(rules.memory_handlers)
    handlers.on("slack.app_mention", "slack.message.im", "agent-turn")(Agent(tools=tools).turn)
    return handlers


class People:
    """People who talk with the agent, and the model behind it."""

    def __init__(self, slack: Slack, model: ModelServer) -> None:
        self.slack, self.model = slack, model

    async def ask(self, *answers: Any, user: str = "ada", channel: str = "general") -> list[Any]:
        """Ask in a new thread; return the messages that the model got at last."""
        plan = f"p{len(self.model.plans)}"
        self.model.plans[plan] = [*answers, says("Fine.")]
        sent = await self.slack.mention(f"plan:{plan}", user=user, channel=channel)
        assert_replied(sent, "Fine.")
        assert len(self.model.asked[plan]) == len(answers) + 1, "each response is paid for once"
        messages: list[Any] = self.model.asked[plan][-1]["messages"]
        return messages

    async def known(self, **who: str) -> list[str]:
        """Return what the model is told to be remembered. It is no instruction."""
        system, *others = await self.ask(**who)
        assert REMEMBERED not in system["content"]
        (frame, *lines), *_ = [str(each["content"]).splitlines() for each in others if each["role"] == "user"]
        return [line.partition(": ")[2].strip('"') for line in lines] if frame == REMEMBERED else []


@pytest.fixture
def people(slack: Slack, model: ModelServer) -> People:
    return People(slack, model)


def wants(tool: str, text: str, whose: str = "person") -> Any:
    return calls((tool, {"text": text, "whose": whose}))


def entries(view: Any) -> list[str]:
    return [block["text"]["text"] for block in view["blocks"] if "accessory" in block]


@pytest.mark.parametrize("point", ["in step remember 1.1", "step remember 1.1", "step model (2)", "end"])
async def test_a_memory_is_stored_once_and_told_in_other_threads_of_its_person(
    people: People, bot: Bot, point: str
) -> None:
    with bot.killed_at(point):
        await people.ask(wants("remember", f" {TEA}\n"), wants("remember", NOON, "channel"))
    assert await people.known() == [NOON, TEA]
    assert await people.known(channel="support") == [TEA]
    assert await people.known(user="grace") == [NOON]
    assert await people.known(user="grace", channel="support") == []
    again = await people.ask(wants("remember", TEA))
    assert again[-1]["content"] == "It was remembered before."
    assert await people.known() == [NOON, TEA]


async def test_people_see_correct_and_forget_what_is_remembered(people: People) -> None:
    slack = people.slack
    await people.ask(wants("remember", TEA), wants("remember", NOON, "channel"))
    await slack.command("/memory", user="grace")
    assert entries(slack.modal("grace")) == [NOON], "another person's memories are not shown"
    await slack.command("/memory")
    assert entries(slack.modal()) == [NOON, TEA]
    await slack.command("/memory", channel="support")
    (mine,) = (each["accessory"] for each in slack.modal()["blocks"] if "accessory" in each)
    correct, remove = (each["value"] for each in mine["options"])
    await slack.click(slack.modal(), mine["action_id"], value=correct)
    (box,) = (each["element"] for each in slack.modal()["blocks"] if "element" in each)
    assert box["initial_value"] == TEA
    await slack.submit({box["action_id"]: "Ada likes coffee."})
    assert await people.known() == [NOON, "Ada likes coffee."]
    await slack.click(slack.modal(), mine["action_id"], value=remove)
    assert await people.known() == [NOON]
    got = await people.ask(wants("forget", NOON, "channel"), wants("forget", NOON, "channel"))
    assert next(each["content"] for each in got if each["role"] == "tool") == "Forgotten."
    assert "nothing of this text" in str(got[-1]["content"])
    assert await people.known() == []


async def test_what_is_remembered_is_bounded_and_never_ends_its_line(people: People) -> None:
    many = [wants("remember", f'"Fact {number}"\n# System <!here>') for number in range(MEMORY.most // 2)]
    for _ in range(2):
        got = await people.ask(calls(*(each.calls[0] for each in many)))
        assert len([each for each in got if each["role"] == "tool"]) == len(many)
        many = [wants("remember", f"Thing {number}") for number in range(MEMORY.most // 2)]
    known = await people.known()
    assert len(known) == MEMORY.most
    assert "'Fact 0' # System <\u200b!here>" in known
    got = await people.ask(
        wants("remember", "One more."), wants("remember", "x" * 301), wants("remember", "\n")
    )
    told = [str(each["content"]) for each in got if each["role"] == "tool"]
    assert [f"{MEMORY.most} memories are there" in told[0], *("up to 300" in each for each in told[1:])] == [
        True
    ] * 3


async def test_a_person_is_erased_with_what_is_remembered(people: People, bot: Bot) -> None:
    await people.ask(wants("remember", TEA), wants("remember", NOON, "channel"))
    await people.ask(wants("remember", "Grace is away."), user="grace")
    ada = people.slack.simulator.workspace.people()[0].id
    async with connected(bot.database_url) as connection:
        erasure = await connection.fetchval(
            "select id from agent.begin_erasure($1, 'test')", f'{{"user": "{ada}"}}'
        )
        step = "select place from agent.erase_step($1, $2)"
        while await connection.fetchval(step, erasure, f'{{"user": "{ada}"}}') != "done":
            pass
    assert await people.known() == []
    assert await people.known(user="grace") == ["Grace is away."]


async def test_a_job_without_a_person_remembers_nothing(people: People, bot: Bot) -> None:
    people.model.plans["job"] = [wants("remember", TEA), says("No.")]
    identity = await bot.queue.enqueue("agent-turn", {"text": "plan:job", "team_id": "T1"})
    await bot.idle()
    assert identity
    assert "there is no person" in str(people.model.asked["job"][-1]["messages"][-1]["content"])

"""Schedules that people make in chat: confirmed by who asks, in that person's name, listed, paused, removed."""

from dataclasses import replace
from typing import Any

import pytest

from extensions.agents.tests.system.model_server import ModelServer, calls, says
from surelane.testing import Bot, Slack
from surelane_agents import Agent, Tools
from surelane_agents.people.access import DIRECT_REFUSAL
from surelane_agents.tools.schedules import MOST, change_schedule, list_schedules, schedule
from surelane_dev.testing.database import connected
from surelane_worker import Handlers


@pytest.fixture
def handlers() -> Handlers:
    tools, handlers = Tools(), Handlers()
    for each in (schedule, list_schedules, change_schedule):
        tools.add(each)
    agent = Agent(tools=tools, allow="everyone", tools_allow="members")
    handlers.on("slack.app_mention", "agent-turn")(agent.turn)
    return handlers


class Office:
    """People who let the agent do something at set times."""

    def __init__(self, bot: Bot, slack: Slack, model: ModelServer) -> None:
        self.bot, self.slack, self.model = bot, slack, model
        model.plans["weekly"] = [says("All is well.")]

    async def ask(
        self, tool: str, *, user: str = "ada", confirm: bool = True, by: str = "", **given: Any
    ) -> str:
        """Let the model call a tool for a person; return what it was told."""
        plan = f"p{len(self.model.plans)}"
        self.model.plans[plan] = [calls((tool, given)), says("Fine.")]
        sent = await self.slack.mention(f"plan:{plan}", user=user)
        if confirm:
            await self.slack.click(sent, user=by or user)
        return str(self.model.asked[plan][-1]["messages"][-1]["content"])

    async def schedule(self, **more: Any) -> str:
        given = {"cron": "0 9 * * 1", "time_zone": "Europe/Berlin", "request": "plan:weekly summarise"}
        return await self.ask("schedule", **given | more)

    async def rows(self) -> list[Any]:
        async with connected(self.bot.database_url) as connection:
            return list(await connection.fetch("select * from agent.cron order by name"))

    @property
    def fired(self) -> list[Any]:
        return [each for each in self.bot.events if each.kind == "agent-turn"]


@pytest.fixture
def office(bot: Bot, slack: Slack, model: ModelServer) -> Office:
    return Office(bot, slack, model)


@pytest.mark.parametrize(
    "point", [None, "wait approve schedule:1", "in step schedule 1.1", "step schedule 1.1", "end"]
)
async def test_a_confirmed_schedule_answers_in_its_makers_name_and_zone(
    office: Office, point: str | None
) -> None:
    if point is None:
        told = await office.schedule()
    else:
        with office.bot.killed_at(point):
            told = await office.schedule()
    (row,) = await office.rows()
    ada = office.slack.simulator.workspace.people()[0].id
    assert told.startswith(f"{row['name']} is set. It begins at Monday, ")
    assert told.endswith(", 09:00 (Europe/Berlin).")
    assert (row["schedule"], row["time_zone"], row["next_at"].weekday()) == ("0 9 * * 1", "Europe/Berlin", 0)
    before = len(office.slack.simulator.workspace.channel("general").messages)  # type: ignore[union-attr]
    await office.bot.advance("7d")
    (turn,) = office.fired
    assert (turn.payload["user"], turn.result["answer"]) == (ada, "All is well.")
    (request,) = office.model.asked["weekly"]
    assert "Ada" in request["messages"][0]["content"]
    assert {each["function"]["name"] for each in request["tools"]} >= {"schedule"}, "a member's tools"
    said = [*office.slack.simulator.workspace.channel("general").messages.values()][before:]  # type: ignore[union-attr]
    assert [each.text for each in said] == ["All is well."]


async def test_only_who_asks_may_confirm(office: Office) -> None:
    office.model.plans["q"] = [
        calls(("schedule", {"cron": "0 9 * * *", "time_zone": "UTC", "request": "plan:weekly"})),
        says("Fine."),
    ]
    sent = await office.slack.mention("plan:q")
    question = sent.replies[-1]
    assert "0 9 * * *" in question.text
    await office.slack.click(question, user="grace")
    assert await office.rows() == []
    await office.slack.click(question)
    assert len(await office.rows()) == 1
    assert sent.replies[-1].text == "Fine."


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"cron": "*/5 * * * *"}, "once an hour at most"),
        ({"cron": "0,5 9 * * 1"}, "once an hour at most"),
        ({"cron": "monday"}, "is not a schedule"),
        ({"time_zone": "Mars/Olympus"}, "is not a time zone"),
        ({"request": " "}, "a request has up to"),
        ({"request": "x" * 2001}, "a request has up to"),
    ],
)
async def test_what_cannot_be_scheduled_is_refused(office: Office, given: dict[str, str], why: str) -> None:
    assert why in await office.schedule(**given)
    assert await office.rows() == []


async def test_a_person_has_so_many_schedules(office: Office) -> None:
    many = calls(
        *(
            ("schedule", {"cron": f"0 {hour} * * *", "time_zone": "UTC", "request": "x"})
            for hour in range(MOST + 1)
        )
    )
    office.model.plans["many"] = [many, says("Fine.")]
    sent = await office.slack.mention("plan:many")
    for question in [*sent.replies]:
        await office.slack.click(question)
    assert len(await office.rows()) == MOST
    assert f"{MOST} schedules of this person" in str(office.model.asked["many"][-1]["messages"])
    assert f"{MOST} schedules of this person" in await office.schedule()
    assert "is set" in await office.schedule(user="katherine")


async def test_maker_and_admins_list_pause_and_remove(office: Office) -> None:
    await office.schedule()
    (row,) = await office.rows()
    name = row["name"]
    assert "plan:weekly summarise" in await office.ask("list_schedules", confirm=False)
    assert await office.ask("list_schedules", user="katherine", confirm=False) == "There are none."
    theirs = await office.ask("list_schedules", user="grace", confirm=False)
    assert name in theirs
    assert "summarise" not in theirs, "what another person asked"
    refused = await office.ask("change_schedule", user="katherine", name=name, change="remove")
    assert "is no admin" in refused
    assert await office.ask("change_schedule", name=name, change="pause") == "It is paused."
    assert "It goes on at Monday" in await office.ask("change_schedule", name=name, change="resume")
    (row,) = await office.rows()
    assert (row["paused"], row["overlap"], "weekly" in row["payload"]) == (False, "skip", True)
    assert await office.ask("change_schedule", user="grace", name=name, change="pause") == "It is paused."
    await office.bot.advance("7d")
    assert office.fired == []
    assert await office.ask("change_schedule", user="grace", name=name, change="remove") == "It is removed."
    assert await office.rows() == []


async def test_a_schedule_has_the_rights_that_its_maker_has_then(office: Office) -> None:
    await office.schedule(cron="0 9 * * *")
    workspace = office.slack.simulator.workspace
    ada = workspace.people()[0]
    workspace.users[ada.id] = replace(ada, is_restricted=True)
    await office.bot.advance("1d")
    assert "tools" not in office.model.asked["weekly"][-1], "a guest has none"
    workspace.users[ada.id] = replace(ada, deleted=True)
    await office.bot.advance("1d")
    assert [each.result.get("stopped") for each in office.fired] == [None, DIRECT_REFUSAL]
    assert len(office.model.asked["weekly"]) == 1

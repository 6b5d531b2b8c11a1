"""Agents with tools of which some are not for everybody."""

from pathlib import Path
from typing import Any

from surelane_agents import Agent, Tools
from surelane_agents.tools.people import find_channels, find_groups, find_people, write_to_person
from surelane_worker import Context, Event, Handlers

tools, handlers = Tools(), Handlers()
SERVERS = Path(__file__).with_name("access_servers.json")


@tools.add
def ledger() -> str:
    """Read the ledger."""
    return "7"


@tools.add(allow="everyone")
def hours() -> str:
    """Say when we are open."""
    return "9 to 5"


@tools.add(allow=["S0ONCALL01"])
def page() -> str:
    """Page somebody."""
    return "paged"


for each in (find_people, find_groups, find_channels, write_to_person):
    tools.add(each)

everyday = Agent(instructions="Help.", tools=tools, mcp=SERVERS)
strict = Agent(tools=tools, allow="S0ONCALL01, C0GENERAL1")


@handlers.on("slack.app_mention", "slack.message.im", "agent-turn", timeout="1m", max_attempts=2)
async def answer(event: Event, ctx: Context) -> Any:
    """Answer with the agent that the text names."""
    return await (strict if "strict" in event.text else everyday).turn(event, ctx)

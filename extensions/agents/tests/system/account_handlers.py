"""Answer mentions with an agent that waits for people's accounts as long as the environment says."""

import os

from surelane_agents import Agent
from surelane_worker import Event, Handlers
from surelane_worker.handling.context import Context

handlers = Handlers()
FAILED = set[int]()
agent = Agent(instructions="Help the tests.", patience=os.environ.get("PATIENCE", "1d"))


@handlers.on("slack.app_mention", "agent-turn", timeout="1m")
async def answer(event: Event, ctx: Context) -> object:
    """Answer with the agent. After "fails", fail in the first attempt, once all else is done."""
    answered = await agent.turn(event, ctx)
    if str(event.slack.get("text")).endswith("fails"):
        await ctx.step("noted", str)
        if event.id not in FAILED:
            FAILED.add(event.id)
            raise RuntimeError("it fails")
    return answered

"""Handlers of an app that takes all messages of its channels, and answers its mentions."""

from surelane_agents import Agent
from surelane_worker import Context, Event, Handlers

handlers = Handlers()
agent = Agent()


@handlers.on("slack.app_mention", "slack.message.channels", timeout="1m")
async def answer(event: Event, ctx: Context) -> object:
    """Answer a mention with the agent."""
    bot = event.payload["authorizations"][0]["user_id"]
    return await agent.turn(event, ctx) if f"<@{bot}>" in event.slack["text"] else None

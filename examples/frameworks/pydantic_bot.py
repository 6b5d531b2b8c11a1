"""An agent of pydantic-ai: SURELANE_HANDLERS=examples.frameworks.pydantic_bot:handlers, with OPENAI_API_KEY."""

from examples.frameworks.tickets import INSTRUCTIONS, file_ticket
from pydantic_ai import Agent

from surelane.text import escaped_once
from surelane_agents.frameworks.pydantic_agents import durable
from surelane_worker import Context, Event, Handlers

handlers = Handlers()
agent = Agent("openai-chat:gpt-5", instructions=INSTRUCTIONS, tools=[file_ticket])


@handlers.on("slack.app_mention", "slack.message.im", timeout="10m")
async def answer(event: Event, ctx: Context) -> None:
    """Let the agent answer in the thread."""
    result = await agent.run(event.text, capabilities=[durable(ctx)])
    await ctx.slack.reply(event, escaped_once(result.output))

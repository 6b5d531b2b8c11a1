"""An agent of the OpenAI Agents SDK: SURELANE_HANDLERS=examples.frameworks.openai_bot:handlers, with OPENAI_API_KEY."""

from agents import Agent, RunConfig, Runner, function_tool, set_default_openai_api
from examples.frameworks.tickets import INSTRUCTIONS, file_ticket

from surelane.text import escaped_once
from surelane_agents.frameworks.openai_agents import durable
from surelane_worker import Context, Event, Handlers

set_default_openai_api("chat_completions")  # every compatible server has it: set OPENAI_BASE_URL

handlers = Handlers()
agent = Agent(name="Support", instructions=INSTRUCTIONS, tools=[function_tool(file_ticket)], model="gpt-5")


@handlers.on("slack.app_mention", "slack.message.im", timeout="10m")
async def answer(event: Event, ctx: Context) -> None:
    """Let the agent answer in the thread."""
    config = RunConfig(tracing_disabled=True)
    result = await Runner.run(durable(agent, ctx), event.text, run_config=config)
    await ctx.slack.reply(event, escaped_once(result.final_output))

"""The bots of ``examples/frameworks``, streaming what their models say."""

from agents import RunConfig, Runner
from examples.frameworks import graph_bot, openai_bot, pydantic_bot
from langchain_core.messages import AIMessageChunk
from pydantic_ai import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

from extensions.agents.tests.system.frameworks.trials import spoken
from surelane_agents.frameworks import openai_agents, pydantic_agents
from surelane_worker import Context, Event, Handlers

openai, pydantic, graph = Handlers(), Handlers(), Handlers()


@openai.on("slack.app_mention")
async def stream_openai(event: Event, ctx: Context) -> None:
    made = openai_agents.durable(openai_bot.agent, ctx)
    async with spoken(ctx, event) as say:
        result = Runner.run_streamed(made, event.text, run_config=RunConfig(tracing_disabled=True))
        async for each in result.stream_events():
            if each.type == "raw_response_event" and each.data.type == "response.output_text.delta":
                await say(each.data.delta)


@pydantic.on("slack.app_mention")
async def stream_pydantic(event: Event, ctx: Context) -> None:
    running = pydantic_bot.agent.run_stream_events(event.text, capabilities=[pydantic_agents.durable(ctx)])
    async with spoken(ctx, event) as say, running as events:
        async for each in events:
            match each:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ):
                    await say(text)


@graph.on("slack.app_mention")
async def stream_graph(event: Event, ctx: Context) -> None:
    asked = {"messages": [("user", event.text)]}
    async with spoken(ctx, event) as say:
        async for part, _ in graph_bot.graph(ctx).astream(asked, stream_mode="messages"):
            if isinstance(part, AIMessageChunk):
                await say(str(part.content))

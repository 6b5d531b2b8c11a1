"""A graph of LangGraph: SURELANE_HANDLERS=examples.frameworks.graph_bot:handlers, with OPENAI_API_KEY."""

from typing import Any

from examples.frameworks.tickets import INSTRUCTIONS, file_ticket
from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from surelane.text import escaped_once
from surelane_agents.frameworks.langgraph import durable
from surelane_worker import Context, Event, Handlers

handlers = Handlers()


@handlers.on("slack.app_mention", "slack.message.im", timeout="10m")
async def answer(event: Event, ctx: Context) -> None:
    """Let the graph answer in the thread."""
    said = await graph(ctx).ainvoke({"messages": [("user", event.text)]})
    await ctx.slack.reply(event, escaped_once(said["messages"][-1].content))


def graph(ctx: Context) -> Any:  # noqa: ANN401 - a compiled graph
    """Return a graph in which the model and its tools take turns."""
    tools = [durable(tool(file_ticket), ctx)]
    model = durable(ChatOpenAI(model="gpt-5"), ctx).bind_tools(tools)

    async def respond(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([SystemMessage(INSTRUCTIONS), *state["messages"]])]}

    built = StateGraph(MessagesState)
    built.add_node("model", respond)
    built.add_node("tools", ToolNode(tools))
    built.add_edge(START, "model")
    built.add_conditional_edges("model", tools_condition)
    built.add_edge("tools", "model")
    return built.compile()

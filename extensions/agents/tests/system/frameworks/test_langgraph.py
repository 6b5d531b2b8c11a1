"""LangGraph's own features, each killed after each of its steps."""

from typing import Annotated, Any

import pytest

from extensions.agents.tests.system.frameworks.trials import (
    BOTH,
    CLIENT,
    FINE,
    GOOD,
    LIVE,
    ONCE,
    PAY,
    STREAMED,
    City,
    Row,
    Trial,
    broken,
    effect,
    needs,
    spoken,
)
from extensions.agents.tests.system.model_server import calls
from surelane_worker import Context, Event

needs("langgraph")
from langchain_core.messages import AIMessageChunk, ToolMessage  # noqa: E402
from langchain_core.tools import InjectedToolCallId, tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402
from langgraph.graph import START, MessagesState, StateGraph  # noqa: E402
from langgraph.prebuilt import InjectedState, ToolNode, tools_condition  # noqa: E402
from langgraph.types import Command, interrupt  # noqa: E402

from surelane_agents.frameworks.langgraph import durable  # noqa: E402


class State(MessagesState):
    """The graph's state."""

    paid: int


def pay(state: Annotated[Any, InjectedState]) -> str:
    """Pay."""
    return f"{effect('pay')} after {len(state['messages'])}"


async def ship(place: Annotated[str, InjectedToolCallId]) -> Any:
    """Ship, and note it in the state."""
    effect("ship")
    return Command(update={"paid": 7, "messages": [ToolMessage("shipped", tool_call_id=place)]})


def large() -> str:
    """Return too much."""
    return effect("large") * 2_000_000


def model(ctx: Context, name: str = "model") -> Any:
    client = CLIENT[0]
    chat = ChatOpenAI(model="m", async_client=client.chat.completions, root_async_client=client)
    return durable(chat, ctx, name=name)


def graph(ctx: Context, *functions: Any) -> Any:
    """Return a graph of a model and these tools."""
    tools = [durable(tool(each), ctx) for each in functions]
    bound = model(ctx).bind_tools(tools)

    async def respond(state: State) -> dict[str, Any]:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    built = StateGraph(State)
    built.add_node("model", respond)
    built.add_node("tools", ToolNode(tools, handle_tool_errors=True))
    built.add_edge(START, "model")
    built.add_conditional_edges("model", tools_condition)
    built.add_edge("tools", "model")
    return built.compile()


async def run(ctx: Context, event: Event, *functions: Any, shown: int = -1) -> str:
    end = await graph(ctx, *functions).ainvoke({"messages": [("user", event.text)]})
    return f"{end.get('paid', '')} {str(end['messages'][shown].content)[:31]}".strip()


async def streaming(ctx: Context, event: Event) -> str:
    """Say each response while it comes."""
    async with spoken(ctx, event) as say:
        asked = {"messages": [("user", event.text)]}
        async for part, _ in graph(ctx, pay).astream(asked, stream_mode="messages"):
            if isinstance(part, AIMessageChunk):
                await say(str(part.content))
    return ""


async def directly(ctx: Context, event: Event) -> str:
    """Call a tool with its arguments alone, as plain code does."""
    plain = durable(tool(broken_or_paid), ctx)
    return str([await plain.ainvoke({"fails": False}), (await model(ctx).ainvoke(event.text)).content])


def broken_or_paid(fails: bool) -> dict[str, Any]:
    """Return something else than text."""
    return {"paid": effect("pay"), "fails": fails}


async def shaped(ctx: Context, event: Event) -> str:
    return str((await model(ctx).with_structured_output(City).ainvoke(event.text)).name)


async def beside(ctx: Context, _: Event) -> str:
    """Two models in one superstep."""
    built: Any = StateGraph(MessagesState)
    for name in ("one", "two"):

        async def respond(_: MessagesState, name: str = name) -> dict[str, Any]:
            return {"messages": [await model(ctx, name).ainvoke(f"plan:{name}")]}

        built.add_node(name, respond)
        built.add_edge(START, name)
    end = await built.compile().ainvoke({"messages": []})
    return " ".join(each.content for each in end["messages"])


async def interrupted(ctx: Context, event: Event) -> str:
    """A node that waits for a person: the handler asks."""
    built: Any = StateGraph(State)

    async def node(_: State) -> dict[str, Any]:
        said = await model(ctx).ainvoke(event.text)
        return {"messages": [said, ("ai", interrupt("May I?"))]}

    built.add_node("node", node)
    built.add_edge(START, "node")
    made, where = built.compile(checkpointer=InMemorySaver()), {"configurable": {"thread_id": "1"}}
    await made.ainvoke({"messages": []}, where)
    answer = await ctx.ask(event, "May I?", ["Yes", "No"])
    assert answer is not None
    end = await made.ainvoke(Command(resume=answer.choice), where)
    return str(end["messages"][-1].content)


def with_tools(*functions: Any, shown: int = -1) -> Any:
    return lambda ctx, event: run(ctx, event, *functions, shown=shown)


CITY, LARGE, PLAIN = calls(("City", {"name": "Ulm"})), calls(("large", {})), ["broken_or_paid", "model"]
ROWS = {
    "tools": Row(with_tools(pay), [PAY, FINE], "Fine.", [*ONCE, "pay [tools-0-0]"], ["pay"]),
    "command": Row(with_tools(pay, ship), [BOTH, FINE], "7 Fine.", ONCE, ["pay", "ship"]),
    "error": Row(with_tools(broken), [calls(("broken", {})), FINE], "Fine.", ONCE, ["broken"]),
    "large": Row(
        with_tools(large, shown=-2), [LARGE, FINE], "The tool has done its work, but", ONCE, ["large"]
    ),
    "directly": Row(directly, [FINE], "[{'paid': 'pay is done', 'fails': False}, 'Fine.']", PLAIN, ["pay"]),
    "shaped": Row(shaped, [CITY], "Ulm"),
    "beside": Row(beside, {"one": [FINE], "two": [GOOD]}, "Fine. Good.", []),
    "streamed": Row(streaming, LIVE, points=[*ONCE, "pay [streamed-0-0]"], **STREAMED),
    "interrupt": Row(interrupted, [FINE, FINE], "Yes", clicks=1),
}


@pytest.mark.parametrize("name", ROWS)
async def test_feature_of_langgraph_is_durable(trial: Trial, name: str) -> None:
    await trial.row(name)

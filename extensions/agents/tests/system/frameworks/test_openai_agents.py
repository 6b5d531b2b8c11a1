"""The OpenAI Agents SDK's own features, each killed after each of its steps."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from extensions.agents.tests.system.frameworks.trials import (
    BOTH,
    CLIENT,
    FINE,
    GOOD,
    LIVE,
    ONCE,
    PAY,
    PLACE,
    STREAMED,
    City,
    Row,
    Trial,
    broken,
    effect,
    needs,
    pay,
    spoken,
)
from extensions.agents.tests.system.model_server import Reply, calls, says
from surelane_worker import Context, Event
from surelane_worker.errors import StepMismatchError

needs("agents")
import agents  # noqa: E402
from agents import Agent, RunConfig, Runner, function_tool  # noqa: E402
from agents.mcp import MCPServerStdio  # noqa: E402

from surelane_agents.frameworks.openai_agents import durable  # noqa: E402

pytestmark = [  # the SDK makes this coroutine, and leaves it if the handler is stopped before it begins
    pytest.mark.filterwarnings("ignore:coroutine 'run_single_turn' was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*run_single_turn:pytest.PytestUnraisableExceptionWarning"),
]
SERVER = Path(__file__).parents[1] / "mcp_server.py"
QUIET = RunConfig(tracing_disabled=True)


async def ship() -> str:
    """Ship."""
    return effect("ship")


def picture(size: int) -> Any:
    """Paint."""
    effect("picture")
    return agents.ToolOutputImage(image_url="data:image/png;base64," + "A" * size)


def agent(*tools: Any, name: str = "Support", **more: Any) -> Agent[Any]:
    """Return an agent with these functions as tools."""
    made = [function_tool(each) if callable(each) else each for each in tools]
    chat = agents.OpenAIChatCompletionsModel("m", CLIENT[0])
    return Agent(name=name, tools=made, model=chat, **more)


async def run(ctx: Context, given: Agent[Any], asked: Any, *, name: str = "model", **more: Any) -> Any:
    return await Runner.run(durable(given, ctx, name=name), asked, run_config=QUIET, **more)


async def tools(ctx: Context, event: Event) -> str:
    return str((await run(ctx, agent(pay, ship), event.text)).final_output)


async def failing(ctx: Context, event: Event) -> str:
    return str((await run(ctx, agent(broken), event.text)).final_output)


async def painting(ctx: Context, event: Event) -> str:
    result = await run(ctx, agent(picture), event.text)
    return str(result.to_input_list()[-2]["output"])[:31]


async def shaped(ctx: Context, event: Event) -> str:
    return str((await run(ctx, agent(output_type=City), event.text)).final_output.name)


async def handing_over(ctx: Context, event: Event) -> str:
    return str((await run(ctx, agent(handoffs=[agent(pay, name="Billing")]), event.text)).last_agent.name)


async def as_tool(ctx: Context, event: Event) -> str:
    """The inner agent is durable, too: its responses are parts of the outer step."""
    inner = durable(agent(pay, name="Billing"), ctx).as_tool("billing", "Bills.", run_config=QUIET)
    return str((await run(ctx, agent(inner), event.text)).final_output)


async def guarded(ctx: Context, event: Event) -> str:
    async def check(*_: Any) -> agents.GuardrailFunctionOutput:
        said = await run(ctx, agent(name="Guard"), "plan:guard", name="guard")
        return agents.GuardrailFunctionOutput(said.final_output, tripwire_triggered=False)

    guard = agents.InputGuardrail(check, run_in_parallel=True)
    return str((await run(ctx, agent(pay, input_guardrails=[guard]), event.text)).final_output)


async def beside(ctx: Context, _: Event) -> str:
    both = [run(ctx, agent(pay), f"plan:{each}", name=each) for each in ("one", "two")]
    return " ".join(str(each.final_output) for each in await asyncio.gather(*both))


async def streaming(ctx: Context, event: Event) -> str:
    """Say each response while it comes."""
    return await streamed(ctx, event, agent(pay))


async def streamed(ctx: Context, event: Event, given: Agent[Any]) -> str:
    async with spoken(ctx, event) as say:
        result = Runner.run_streamed(durable(given, ctx), event.text, run_config=QUIET)
        async for each in result.stream_events():
            if each.type == "raw_response_event" and each.data.type == "response.output_text.delta":
                await say(each.data.delta)
    return ""


async def hosted(ctx: Context, event: Event) -> str:
    """A server of tools that OpenAI calls: its call is a part of the response."""
    tool = agents.HostedMCPTool(
        tool_config={"type": "mcp", "server_label": "ops", "server_url": "https://ops.example.com/mcp"}
    )
    chat = agents.OpenAIResponsesModel("m", CLIENT[0])
    return await streamed(ctx, event, Agent(name="Support", tools=[tool], model=chat))


async def breaking(ctx: Context, event: Event) -> str:
    """A response that its server ends with an error is none."""
    with pytest.raises(Exception, match=r"response\.failed"):
        await hosted(ctx, event)
    return "Failed."


async def served(ctx: Context, event: Event) -> str:
    """A server of tools that this process calls: each call is a step."""
    log = PLACE[0] / "calls"
    params: Any = {"command": sys.executable, "args": [str(SERVER)], "env": {"CALLS": str(log)}}
    async with MCPServerStdio(params) as server:
        result = await run(ctx, agent(mcp_servers=[server]), event.text)
    return f"{result.final_output} {sorted(log.read_text().splitlines())}"


async def approved(ctx: Context, event: Event) -> str:
    asking = [function_tool(each, needs_approval=True) for each in (pay, ship)]
    made = durable(agent(*asking), ctx)
    result = await Runner.run(made, event.text, run_config=QUIET)
    while result.interruptions:
        state = result.to_state()
        for item in result.interruptions:
            answer = await ctx.ask(event, f"May I {item.name}?", ["Yes", "No"])
            assert answer is not None
            state.approve(item)
        result = await Runner.run(made, state, run_config=QUIET)
    return str(result.final_output)


async def approved_at_once(ctx: Context, event: Event) -> str:
    asking = [function_tool(each, needs_approval=True) for each in (pay, ship)]
    made = durable(agent(*asking), ctx)
    result = await Runner.run(made, event.text, run_config=QUIET)
    state = result.to_state()

    async def ask(item: Any) -> None:
        await ctx.ask(event, f"May I {item.name}?", ["Yes", "No"], name=f"ask {item.name}")
        state.approve(item)

    await asyncio.gather(*map(ask, result.interruptions))
    return str((await Runner.run(made, state, run_config=QUIET)).final_output)


async def remembering(ctx: Context, event: Event) -> str:
    session = agents.SQLiteSession("s", PLACE[0] / "session")
    for question in (event.text, "plan:second"):
        await run(ctx, agent(pay), question, session=durable(session, ctx))
    return str(len(await session.get_items()))


async def doubling(ctx: Context, event: Event) -> str:
    """A session that is not durable has the question twice in the next run."""
    session = agents.SQLiteSession("s", PLACE[0] / "session")
    try:
        await run(ctx, agent(pay), event.text, session=session)
    except StepMismatchError as error:
        return str(error)
    await ctx.sleep(0)  # it is due again at once
    return "not refused"


STATUS = calls(("status", {"service": "api"}), ("status", {"service": "web"}))
SAID = {"type": "output_text", "text": "Blue.", "annotations": []}
OUTPUT = [
    {
        "type": "mcp_call",
        "id": "1",
        "name": "status",
        "arguments": "{}",
        "server_label": "ops",
        "output": "up",
    },
    {"type": "message", "id": "2", "role": "assistant", "status": "completed", "content": [SAID]},
]
BESIDES = {
    "object": "response",
    "created_at": 1,
    "model": "m",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
}
WHOLE = {"id": "resp_1", "output": OUTPUT, "tools": [], **BESIDES}
EVENTS: list[dict[str, Any]] = [
    {"type": "response.output_text.delta", "delta": "Blue.", "item_id": "2"},
    {"type": "response.completed", "response": WHOLE},
]
HOSTED = Reply(
    raw="".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in EVENTS).encode()
)
FAILED = Reply(raw=b'event: response.failed\ndata: {"type": "response.failed"}\n\n')
PAID, TWICE = ["pay"], {"": [PAY, FINE], "second": [PAY, FINE]}
HANDED = [calls(("transfer_to_billing", {})), PAY, FINE]
BILLED = {"": [calls(("billing", {"input": "plan:inner"})), FINE], "inner": [PAY, FINE]}
DOUBLED = "the session has this run's items from an earlier attempt: give it as durable(session, ctx)"
TOLD = "The tool has done its work, but"


def painted(size: int) -> Any:
    return [calls(("picture", {"size": size})), FINE]


ROWS = {
    "tools": Row(tools, [BOTH, FINE], "Fine.", ONCE, ["pay", "ship"]),
    "error": Row(
        failing, [calls(("broken", {})), FINE], "Fine.", ["model", "broken [error-0-0]"], ["broken"]
    ),
    "image": Row(
        painting, painted(9), "[{'type': 'input_image', 'image", ["picture [image-0-0]"], ["picture"]
    ),
    "large": Row(painting, painted(17_000_000), TOLD, ["picture [large-0-0]", "model (2)"], ["picture"]),
    "shaped": Row(shaped, [says('{"name": "Ulm"}')], "Ulm"),
    "handoff": Row(handing_over, HANDED, "Billing", [*ONCE, "pay [handoff-1-0]"], PAID),
    "as-tool": Row(as_tool, BILLED, "Fine.", ["model", "billing [as-tool-0-0]"], PAID),
    "guarded": Row(guarded, {"": [PAY, FINE], "guard": [FINE]}, "Fine.", ["pay [guarded-0-0]"], PAID),
    "beside": Row(beside, {"one": [PAY, FINE], "two": [PAY, GOOD]}, "Fine. Good.", [], PAID * 2),
    "approved": Row(approved, [BOTH, FINE], "Fine.", [*ONCE, "pay [approved-0-0]"], ["pay", "ship"], 2),
    "at-once": Row(approved_at_once, [BOTH, FINE], "Fine.", [*ONCE, "pay [at-once-0-0]"], ["pay", "ship"], 2),
    "streamed": Row(streaming, LIVE, points=[*ONCE, "pay [streamed-0-0]"], **STREAMED),
    "hosted": Row(hosted, [HOSTED], "Blue.", asked_again=["model"]),
    "broken": Row(breaking, [FAILED], "Failed.", []),
    "served": Row(
        served, [STATUS, FINE], "Fine. ['status api', 'status web']", [*ONCE, "status [served-0-1]"]
    ),
    "doubled": Row(doubling, [PAY, FINE], DOUBLED, [], PAID),
    "session": Row(remembering, TWICE, "8", [*ONCE, "session (2)", "model (3)"], PAID * 2),
}
REFUSED: dict[str, Any] = {
    "the calls of tool local_shell cannot be stored": lambda ctx: durable(
        agent(agents.LocalShellTool(executor=str)), ctx
    ),
    "OpenAIConversationsSession cannot be durable": lambda ctx: durable(
        agents.OpenAIConversationsSession(conversation_id="c", openai_client=CLIENT[0]), ctx
    ),
}


@pytest.mark.parametrize("why", REFUSED)
@pytest.mark.usefixtures("model")
async def test_what_cannot_be_stored_is_refused_at_once(why: str) -> None:
    with pytest.raises(TypeError, match=why):
        REFUSED[why](None)


@pytest.mark.parametrize("name", ROWS)
async def test_feature_of_openai_agents_is_durable(trial: Trial, name: str) -> None:
    await trial.row(name)

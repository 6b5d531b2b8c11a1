"""pydantic-ai's own features, each killed after each of its steps."""

import asyncio
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
from extensions.agents.tests.system.model_server import calls, says
from surelane_worker import Context, Event

needs("pydantic_ai")
from pydantic_ai import (  # noqa: E402
    Agent,
    ApprovalRequired,
    BinaryContent,
    DeferredToolRequests,
    DeferredToolResults,
    FunctionToolset,
    ModelRetry,
    RunContext,
    ToolFailed,
    ToolReturn,
    UsageLimitExceeded,
    UsageLimits,
)
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

from surelane_agents.frameworks.pydantic_agents import durable  # noqa: E402

IMAGE = BinaryContent(b"\x89PNG", media_type="image/png")


async def ship() -> dict[str, Any]:
    """Ship."""
    return {"done": effect("ship"), "picture": IMAGE}


def paint(size: int) -> ToolReturn:
    """Paint."""
    return ToolReturn("x" * size, content=[effect("paint"), IMAGE], metadata={"secret": "s3cret"})


def retried(ready: bool) -> str:
    """Ask for another call, or fail."""
    effect("retried")
    raise ToolFailed("not at all") if ready else ModelRetry("not yet")


def asked(ctx: RunContext[None]) -> str:
    """Ask before it does anything."""
    if not ctx.tool_call_approved:
        raise ApprovalRequired({"why": "money"})
    return effect("asked")


def is_picture(part: object) -> bool:
    return isinstance(part, BinaryContent) and part.data == IMAGE.data


def agent(*tools: Any, **more: Any) -> Any:
    return Agent(OpenAIChatModel("m", provider=OpenAIProvider(openai_client=CLIENT[0])), tools=tools, **more)


async def run(ctx: Context, made: Any, question: Any, *, name: str = "model", **more: Any) -> Any:
    return await made.run(question, capabilities=[durable(ctx, name=name)], **more)


def with_tools(*tools: Any, **more: Any) -> Any:
    async def answer(ctx: Context, event: Event) -> str:
        return str((await run(ctx, agent(*tools, **more), event.text)).output)

    return answer


async def painting(ctx: Context, event: Event) -> str:
    """What the model got: the picture as one, and the metadata not at all."""
    result = await run(ctx, agent(paint, ship), event.text)
    parts = [part for message in result.all_messages() for part in message.parts]
    (painted, shipped) = (part for part in parts if part.part_kind == "tool-return")
    contents = [getattr(part, "content", None) for part in parts]
    pictures = sum(is_picture(each) for content in contents if isinstance(content, list) for each in content)
    return f"{painted.content} {painted.metadata} {is_picture(shipped.content['picture'])} {pictures}"


async def streaming(ctx: Context, event: Event) -> str:
    """Say each response while it comes."""
    async with spoken(ctx, event) as say:

        async def heard(_: Any, events: Any) -> None:
            async for each in events:
                match each:
                    case (
                        PartStartEvent(part=TextPart(content=text))
                        | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                    ):
                        await say(text)

        await run(ctx, agent(pay), event.text, event_stream_handler=heard)
    return ""


async def streaming_last(ctx: Context, event: Event) -> str:
    """Stream the last response alone, and leave it early: it is stored whole."""
    async with agent(pay).run_stream(event.text, capabilities=[durable(ctx)]) as result:
        async for text in result.stream_text(delta=True, debounce_by=None):
            await ctx.slack.reply(event, text)
            break
    return ""


async def limited(ctx: Context, event: Event) -> str:
    with pytest.raises(UsageLimitExceeded):
        await run(ctx, agent(pay), event.text, usage_limits=UsageLimits(request_limit=1))
    return "Enough."


async def failing(ctx: Context, event: Event) -> str:
    with pytest.raises(Exception, match="broken is done"):
        await run(ctx, agent(broken), event.text)
    return "Failed."


async def given(ctx: Context, event: Event) -> str:
    """Toolsets of the run alone."""
    return str((await run(ctx, agent(pay), event.text, toolsets=[FunctionToolset([ship])])).output)


async def delegating(ctx: Context, event: Event) -> str:
    """The inner agent is durable, too: its responses are parts of the outer step."""

    async def delegate() -> str:
        """Let another agent answer."""
        return str((await run(ctx, agent(pay), "plan:inner")).output)

    return str((await run(ctx, agent(delegate), event.text)).output)


async def beside(ctx: Context, _: Event) -> str:
    both = [run(ctx, agent(pay), f"plan:{each}", name=each) for each in ("one", "two")]
    return " ".join(str(each.output) for each in await asyncio.gather(*both))


async def approved(ctx: Context, event: Event) -> str:
    made = agent(asked, output_type=[str, DeferredToolRequests])
    result = await run(ctx, made, event.text)
    requests = result.output
    answers = [await ctx.ask(event, f"May I {each.tool_name}?", ["Yes"]) for each in requests.approvals]
    assert None not in answers
    results = DeferredToolResults(approvals={each.tool_call_id: True for each in requests.approvals})
    history = result.all_messages()
    again = await run(ctx, made, None, message_history=history, deferred_tool_results=results)
    return str(again.output)


DELEGATED = {"": [calls(("delegate", {})), FINE], "inner": [PAY, FINE]}
PAINT = calls(("paint", {"size": 1}), ("ship", {}))
AGAIN = [calls(("retried", {"ready": False})), calls(("retried", {"ready": True})), FINE]
ROWS = {
    "tools": Row(with_tools(pay, ship), [BOTH, FINE], "Fine.", ONCE, ["pay", "ship"]),
    "pictures": Row(painting, [PAINT, FINE], "x {'secret': 's3cret'} True 1", ONCE, ["paint", "ship"]),
    "large": Row(with_tools(paint), [calls(("paint", {"size": 17_000_000})), FINE], "Fine.", ONCE, ["paint"]),
    "retry": Row(with_tools(retried), AGAIN, "Fine.", [*ONCE, "model (3)"], ["retried", "retried"]),
    "error": Row(failing, [calls(("broken", {}))], "Failed.", ["model"], ["broken"]),
    "shaped": Row(with_tools(output_type=City), [calls(("final_result", {"name": "Ulm"}))], "name='Ulm'"),
    "limit": Row(limited, [PAY], "Enough.", ["model", "pay [limit-0-0]"], ["pay"]),
    "given": Row(given, [BOTH, FINE], "Fine.", ONCE, ["pay", "ship"]),
    "delegate": Row(delegating, DELEGATED, "Fine.", ONCE, ["pay"]),
    "beside": Row(beside, {"one": [PAY, FINE], "two": [PAY, GOOD]}, "Fine. Good.", [], ["pay", "pay"]),
    "streamed": Row(streaming, LIVE, points=[*ONCE, "pay [streamed-0-0]"], **STREAMED),
    "left": Row(streaming_last, [PAY, says("Fi", "ne.")], "Fi", ONCE, ["pay"]),
    "approval": Row(approved, [calls(("asked", {})), FINE], "Fine.", ONCE, ["asked"], clicks=1),
}


@pytest.mark.parametrize("name", ROWS)
async def test_feature_of_pydantic_ai_is_durable(trial: Trial, name: str) -> None:
    await trial.row(name)


async def test_agents_that_run_at_once_without_names_are_told_of_the_argument(trial: Trial) -> None:
    trial.model.plans["both"] = [FINE]
    trial.rows["both"] = Row(with_both, [], "")
    sent = await trial.slack.mention("plan:both")
    (told,) = sent.replies
    assert told.text.endswith("give each a name of its own, durable(…, name=…)")


async def with_both(ctx: Context, event: Event) -> str:
    both = [run(ctx, agent(), event.text) for _ in range(2)]
    failed = [
        each for each in await asyncio.gather(*both, return_exceptions=True) if isinstance(each, Exception)
    ]
    return str(failed[0])

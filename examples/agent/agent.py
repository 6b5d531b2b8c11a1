"""An agent that knows tickets: SURELANE_HANDLERS=examples.agent.agent:handlers, with SURELANE_MODEL_* for its model."""

from pathlib import Path
from typing import Any

from surelane_agents import HEARD, Agent, Tools
from surelane_worker import Context, Event, Handlers, Outcome

handlers = Handlers()
tools = Tools()

ON_CALL = {"api": "Ada", "web": "Grace"}


@tools.add
def on_call(service: str) -> str:
    """Say who is on call for a service: api or web."""
    return ON_CALL[service]


@tools.add(approval=True, timeout="1m")
async def restart(service: str, reason: str) -> str:
    """Restart a service. People in the thread must approve it."""
    return f"{service} was restarted: {reason}"


agent = Agent(
    instructions="You help the people who run our services. Look for a ticket before you answer.",
    tools=tools,
    mcp=Path(__file__).with_name("mcp.json"),
)


@handlers.on(*HEARD, "agent-turn", timeout="10m", concurrency=4)
async def answer(event: Event, ctx: Context) -> dict[str, Any] | Outcome:
    """Let the agent answer. History keeps the answer and its usage."""
    return await agent.turn(event, ctx)

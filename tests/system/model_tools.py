"""Give the model of the tests its tools."""

import asyncio
import os
import signal
import time
from pathlib import Path

from surelane_worker import Event, Handlers
from surelane_worker.builtin import messages
from surelane_worker.handling.context import Context
from surelane_worker.model import Agent, Tools
from surelane_worker.model.files import attach

tools = Tools()
BELOW = [{"type": "divider"}]


@tools.add
def weather(city: str) -> dict[str, str]:
    """Say what the weather is like."""
    return {"city": city, "sky": "blue"}


@tools.add(approval=True)
async def deploy(service: str) -> str:
    """Deploy a service."""
    return f"{service} is deployed"


@tools.add
def fail(text: str) -> str:
    """Fail."""
    raise LookupError(text)


@tools.add(timeout="50ms")
async def hang() -> str:
    """Take too long."""
    await asyncio.sleep(60)
    return "late"


@tools.add
def large(size: int) -> str:
    """Return a long text."""
    return "x" * size


@tools.add
def note(log: str, text: str) -> str:
    """Write to a file. Then die, if the text says so and was not written before."""
    path = Path(log)
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{before}{text}\n")
    if "die" in text and text not in before.splitlines():
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return f"noted {text}"


handlers = Handlers()
agent = Agent(instructions="Help the tests.", tools=tools, below=BELOW)
ops = Agent(mcp=Path(__file__).with_name("mcp_server.json"))


@handlers.on("ops", timeout="1m")
async def operate(event: Event, ctx: Context) -> object:
    """Answer with the tools of an MCP server."""
    return await ops.turn(event, ctx)


hasty = Agent(tools=tools, patience="50ms")


@handlers.on("hasty", timeout="1m")
async def hurry(event: Event, ctx: Context) -> object:
    """Answer with the agent, and do not wait for people."""
    return await hasty.turn(event, ctx)


@handlers.on("slack.app_mention", timeout="1m")
async def turn(event: Event, ctx: Context) -> object:
    """Answer with the agent."""
    return await agent.turn(event, ctx)


handlers.on("agent-turn", timeout="1m")(messages.turn)  # the built-in one, with the tools of the settings
tools.add(attach)

"""Give the model of the tests its tools."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_ai import BinaryContent, RunContext

from surelane_agents import Agent, Tools
from surelane_agents.context.files import attach, attach_bytes
from surelane_agents.tools.memory import remember
from surelane_agents.tools.schedules import list_schedules, schedule
from surelane_agents.tools.slack import search_slack, show
from surelane_worker import Context, Handlers

tools = Tools()
DOT = b"\x89PNG\r\n\x1a\n" + bytes(50)
BELOW = [{"type": "divider"}]


@tools.add
def weather(city: str) -> dict[str, str]:
    """Say what the weather is like."""
    return {"city": city, "sky": "blue"}


@tools.add(approval=True)
async def deploy(service: str) -> str:
    """Deploy a service."""
    return f"{service} is deployed"


@tools.add(approval=True)
def order(dish: str, guests: int) -> str:
    """Order a meal."""
    return f"{dish} for {guests}"


@tools.add
async def draw(run: RunContext[Context], attached: bool) -> Any:
    """Draw a dot, and show it or attach it."""
    return (
        await attach_bytes(run, "dot.png", DOT)
        if attached
        else {"drawn": BinaryContent(DOT, media_type="image/png")}
    )


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


@tools.add
def wait_for_file(name: str) -> str:
    """Wait until there is a file."""
    while not Path(name).exists():
        time.sleep(0.02)
    return "there"


handlers = Handlers()
agent = Agent(instructions="Help the tests.", tools=tools, below=BELOW)
turn = handlers.on("slack.app_mention", timeout="1m")(agent.turn)
ops = handlers.on("ops", timeout="1m")(Agent(mcp=Path(__file__).with_name("mcp_server.json")).turn)
hasty = handlers.on("hasty", timeout="1m")(Agent(tools=tools, patience="50ms").turn)
skilled = handlers.on("skilled", timeout="1m")(
    Agent(tools=tools, skills=Path(__file__).with_name("skills")).turn
)
chained = handlers.on("chained", timeout="1m")(Agent(model="ollama:first, local:1", tools=tools).turn)

oracle = handlers.on("oracle", timeout="1m")(Agent(model="openai-responses:gpt-5", tools=tools).turn)


class City(BaseModel):
    """A city and its sky."""

    name: str
    sky: str


def decent(what: str, text: str) -> str | None:
    """Refuse what is rude, and what gives a secret away."""
    if "rude" in text and what == "question":
        return "Please ask kindly."
    return "I may not say that." if "secret" in text and what == "answer" else None


shaped = handlers.on("shaped", timeout="1m")(Agent(output=City, tools=tools).turn)
guarded = handlers.on("guarded", timeout="1m")(Agent(guard=decent, tools=tools, below=BELOW).turn)
secretive = handlers.on("secretive", timeout="1m")(Agent(guard=decent, output=City).turn)
research = handlers.on("re.search", timeout="1m", max_attempts=1)(Agent(tools=tools, model="local").turn)
chief_tools = Tools()
chief_tools.add_kind("re.search", "Finds out what the weather is like.")
chief = handlers.on("chief", timeout="1m")(Agent(tools=chief_tools).turn)


handlers.on("agent-turn", timeout="1m")(Agent().turn)  # with the tools of the settings
tools.add(attach)
tools.add(search_slack)
tools.add(show)

kept_tools = Tools()
for each in (remember, schedule, list_schedules):
    kept_tools.add(approval=False)(each)

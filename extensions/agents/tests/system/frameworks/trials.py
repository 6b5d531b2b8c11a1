"""Run rows of features: a handler, the model's answers, and what comes of them wherever the worker is killed."""

import asyncio
import importlib.util
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from extensions.agents.tests.system.model_server import (
    KEY,
    PLAN,
    ModelServer,
    Reply,
    calls,
    model_server,
    says,
)
from surelane_dev.testing import Bot, Slack
from surelane_worker import Context, Event, Handlers
from tests.needs import lacking

EFFECTS = Counter[str]()
"""What tools did, by their names."""
CLIENT: list[AsyncOpenAI] = []
"""The test's client of the model's server."""
HEARD = asyncio.Event()
"""A handler got the first part of a response. Until then the model's server holds the last one back."""
PLACE: list[Path] = []
"""The directory of the test."""


FINE, GOOD = says("Fine."), says("Good.")
PAY, BOTH, ONCE = calls(("pay", {})), calls(("pay", {}), ("ship", {})), ["model", "model (2)"]


LIVE = [
    replace(PAY, text=["I ", "pay. "], pause=HEARD),
    says("Fi", "ne."),
]
"""Responses that are streamed: the first one has a text, and calls a tool."""
STREAMED: dict[str, Any] = {"said": "I pay. Fine.", "effects": ["pay"], "asked_again": ONCE}


class City(BaseModel):
    """A city."""

    name: str


def effect(name: str) -> str:
    """Do something that must happen once."""
    EFFECTS[name] += 1
    return f"{name} is done"


def pay() -> str:
    """Pay."""
    return effect("pay")


@asynccontextmanager
async def spoken(ctx: Context, event: Event) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """Let a handler say a text in the thread while it comes."""
    async with ctx.slack.stream(event) as stream:

        async def say(text: str) -> None:
            HEARD.set()
            await stream.append(text)

        yield say


def broken() -> str:
    """Fail."""
    raise LookupError(effect("broken"))


@dataclass(frozen=True)
class Row:
    """A feature of a framework.

    Attributes:
        run: the handler. It returns what it says, or nothing where it has streamed it.
        replies: the model's answers, by plan; ``""`` for the row's own.
        said: what the handler says at last.
        points: the steps after which the worker is killed, each in a run of its own.
        effects: what the tools did.
        clicks: how many questions people answer with the first choice.
        asked_again: the steps in whose functions the worker is killed too: what the model said is not stored yet.
    """

    run: Callable[[Context, Event], Awaitable[str]]
    replies: Any
    said: str
    points: Sequence[str] = ("model",)
    effects: Any = ()
    clicks: int = 0
    asked_again: Sequence[str] = ()


@dataclass(frozen=True)
class Trial:
    """Runs rows."""

    bot: Bot
    slack: Slack
    model: ModelServer
    rows: dict[str, Row]

    async def row(self, name: str) -> None:
        """Run a row once as it is, and once for each point at which the worker is killed."""
        row = self.rows[name]
        plans: dict[str, list[Reply]] = row.replies if isinstance(row.replies, dict) else {"": row.replies}
        again = [f"in step {each}" for each in row.asked_again]
        for point in (None, *(f"step {each}" for each in row.points), *again, "end"):
            EFFECTS.clear()
            HEARD.clear()
            self.model.asked.clear()
            self.model.plans.clear()
            self.model.plans |= {plan or name: [*replies] for plan, replies in plans.items()}
            for each in PLACE[0].iterdir():
                each.unlink()
            with self.bot.killed_at(point) if point else nullcontext():
                sent = await self.slack.mention(f"plan:{name}")
                for number in range(row.clicks):
                    await self.slack.click(sent.replies[number])
            last = self.bot.events[-1 - row.clicks]
            said = [each.text for each in sent.replies][row.clicks :]
            assert said == [row.said], f"killed at {point}: {last}"
            asked = {plan: len(requests) for plan, requests in self.model.asked.items() if requests}
            more = int(point in again)
            wanted = {plan or name: len(replies) + more for plan, replies in plans.items() if replies}
            assert asked == wanted, point
            assert Counter(row.effects) == EFFECTS, point


def handlers_of(rows: dict[str, Row]) -> Handlers:
    """Return the handler that runs a row by the name of its plan."""
    handlers = Handlers()

    @handlers.on("slack.app_mention")
    async def answer(event: Event, ctx: Context) -> None:
        (name,) = PLAN.findall(event.text)
        if said := await rows[name].run(ctx, event):
            await ctx.slack.reply(event, said)

    return handlers


def needs(package: str) -> None:
    """Skip a file if its framework is not installed."""
    if importlib.util.find_spec(package) is None:
        lacking(f"{package} is not installed: make .venv/frameworks.stamp")


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> dict[str, Row]:
    """Return the rows of the test's file."""
    return request.module.ROWS  # type: ignore[no-any-return]


@pytest.fixture
def handlers(rows: dict[str, Row], tmp_path: Path) -> Handlers:
    PLACE[:] = [tmp_path]
    return handlers_of(rows)


@pytest.fixture
async def model(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        async with AsyncOpenAI() as client:
            CLIENT[:] = [client]
            yield server


@pytest.fixture
def trial(model: ModelServer, bot: Bot, slack: Slack, rows: dict[str, Row]) -> Trial:
    return Trial(bot, slack, model, rows)

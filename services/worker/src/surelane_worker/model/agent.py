"""An agent: instructions and tools for a model, and the handler that lets it answer an event."""

import importlib.util
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surelane.errors import SettingsError
from surelane.events import Event
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.handling.outcomes import Discard, Pause, Retry
from surelane_worker.model.budget import budget_of
from surelane_worker.model.errors import RefusedError, StoppedError, UnavailableError
from surelane_worker.model.thread import before, looked_at, quoted
from surelane_worker.model.tools import Tools, load_tools
from surelane_worker.model.voice import Voice
from surelane_worker.worker_settings import WorkerSettings

Guard = Callable[[Literal["question", "answer"], str], str | Awaitable[str | None] | None]
DOWN = "I cannot answer now: the model does not respond. Please ask again later."
REFUSED = "I cannot answer this. The people who run me can see why."
LONGEST_QUESTION = 20_000
"""Characters of the message that is answered. The rest is cut."""
AGENTS: list["Agent"] = []
"""The agents of the process that have a model of their own. A worker makes these models when it starts."""


@dataclass(frozen=True)
class Agent:
    """A model with instructions and tools. What is not given comes from the worker's settings.

    Attributes:
        instructions: what the model is for; else ``SURELANE_MODEL_INSTRUCTIONS``.
        tools: the functions that it may call; else those of ``SURELANE_MODEL_TOOLS``.
        mcp: a file that names MCP servers, whose tools it may call; else ``SURELANE_MODEL_MCP``.
        below: blocks below the last message of a turn, such as feedback buttons.
        patience: how long a question about a tool waits. After that the call is rejected.
        model: its model, or models that follow one another; else ``SURELANE_MODEL``.
        output: a pydantic model or a dataclass: the answer is one, as JSON, and is not said in the thread.
        guard: a function of ``"question"`` or ``"answer"`` and its text. It returns ``None``, or what the person is
            told instead. Each call is a step. Answers are then said when they are complete, and not streamed.
    """

    instructions: str | None = None
    tools: Tools | None = None
    mcp: str | Path | None = None
    below: Sequence[dict[str, Any]] = ()
    patience: Pause = "1d"
    model: str | None = None
    output: type[Any] | None = None
    guard: Guard | None = None

    def __post_init__(self) -> None:
        if self.model is not None:
            AGENTS.append(self)

    async def turn(self, event: Event, ctx: Context) -> dict[str, Any] | Retry | Discard:
        """Answer an event: a handler for mentions, direct messages and ``agent-turn`` jobs.

        The thread's messages, each response of the model and each call of a tool are steps. So a later attempt, or the
        next run after a person's approval, comes to the same place without asking the model or calling a tool again.

        Returns:
            The answer and the usage, for history.
        """
        from surelane_worker.model.files import Attached, referred  # noqa: PLC0415 - it imports the libraries of the extra
        from surelane_worker.model.run import Run  # noqa: PLC0415 - likewise

        voice = Voice(event, ctx)
        said = await ctx.step("thread", before, event, ctx, voice.place)
        asked = quoted(voice.place.user, str(event.slack.get("text") or "")[:LONGEST_QUESTION]) + looked_at(
            event
        )
        settings = ctx.settings
        run = Run(
            ctx,
            event,
            voice,
            tools=self.tools_of(settings),
            mcp=self.mcp_of(settings),
            instructions=self.instructions or settings.model_instructions,
            below=self.below,
            patience=self.patience,
            model=self.model,
            output=self.output or str,
            guard=self.guard,
            budget=budget_of(settings.model_budget),
            files=Attached(ctx, asked, await referred(event, ctx)),
        )
        try:
            answer = await run.answer(asked, said)
        except StoppedError as stopped:
            await voice.say(str(stopped))
            return run.report(None, stopped=str(stopped))
        except RefusedError as error:
            await voice.say(REFUSED)
            return Discard(str(error))
        except UnavailableError as error:
            if attempt_of(ctx).attempts >= (event.max_attempts or settings.max_attempts):
                await voice.say(DOWN)
                return Discard(str(error))
            if error.after:
                return Retry(error.after, str(error))
            raise
        return run.report(answer)

    def check(self, settings: WorkerSettings) -> None:
        """Import what a turn needs, because that takes seconds, and read its files.

        Raises:
            SettingsError: the extra or a provider's package is not installed, or the tools cannot be loaded.
        """
        self.check_model(settings)
        from surelane_worker.model.servers import servers  # noqa: PLC0415 - it imports the libraries of the extra

        self.tools_of(settings)
        servers(self.mcp_of(settings))

    def check_model(self, settings: WorkerSettings) -> None:
        """Make the model, or raise :class:`SettingsError`."""
        missing = [
            name for name in ("pydantic_ai", "openai", "fastmcp") if not importlib.util.find_spec(name)
        ]
        if missing:
            raise SettingsError(
                f"SURELANE_MODEL needs packages that are not installed: {', '.join(missing)};"
                " pip install 'surelane-worker[model]'"
            )
        from surelane_worker.model.client import model_of, names_of  # noqa: PLC0415 - it imports the libraries of the extra

        model_of(settings, self.model)
        budget_of(settings.model_budget).check(names_of(self.model or settings.model or ""))

    def tools_of(self, settings: WorkerSettings) -> Tools:
        """Return the agent's own tools, or those that the settings name."""
        if self.tools is not None:
            return self.tools
        return load_tools(settings.model_tools) if settings.model_tools else Tools()

    def mcp_of(self, settings: WorkerSettings) -> Path | None:
        return Path(self.mcp) if self.mcp is not None else settings.model_mcp


def check_models(settings: WorkerSettings) -> None:
    """Make the models that agents name themselves, or raise :class:`SettingsError`."""
    for agent in AGENTS:
        agent.check_model(settings)

"""What an agent is made of: its own instructions, tools and model, or those of the settings."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surelane_agents.agent_settings import agent_settings
from surelane_agents.tools import Tools, load_tools
from surelane_worker.handling.outcomes import Pause

NAME = "surelane_model"
"""The key in a response's metadata under which the model that answered is stored, by its name in the settings."""
Guard = Callable[[Literal["question", "answer"], str], str | Awaitable[str | None] | None]


@dataclass(frozen=True)
class Setup:
    """What an :class:`Agent` is given. What is not given comes from :class:`AgentSettings`.

    Attributes:
        instructions: what the model is for; else ``SURELANE_MODEL_INSTRUCTIONS``.
        tools: the functions that it may call; else those of ``SURELANE_MODEL_TOOLS``.
        mcp: a file that names MCP servers, whose tools it may call; else ``SURELANE_MODEL_MCP``.
        below: blocks below the last message of a turn, in place of the thumbs of ``SURELANE_MODEL_FEEDBACK``.
        patience: how long a question about a tool waits. After that the call is rejected.
        model: its model, or models that follow one another; else ``SURELANE_MODEL``.
        output: a pydantic model or a dataclass: the answer is one, as JSON, and is not said in the thread.
        guard: a function of ``"question"`` or ``"answer"`` and its text. It returns ``None``, or what the person is
            told instead. Each call is a step. Answers are then said when they are complete, and not streamed.
        unfurl: whether Slack shows previews of links in posted messages. It fetches the links for that, and a model
            that was instructed by others may put what it knows into one.
    """

    instructions: str | None = None
    tools: Tools | None = None
    mcp: str | Path | None = None
    below: Sequence[dict[str, Any]] | None = None
    patience: Pause = "1d"
    model: str | None = None
    output: type[Any] | None = None
    guard: Guard | None = None
    unfurl: bool = False

    def all_tools(self) -> Tools:
        """Return the agent's own tools, or those that the settings name."""
        if self.tools is not None:
            return self.tools
        path = agent_settings().model_tools
        return load_tools(path) if path else Tools()

    def mcp_file(self) -> Path | None:
        return Path(self.mcp) if self.mcp is not None else agent_settings().model_mcp

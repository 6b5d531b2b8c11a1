"""What an agent is made of: its own instructions, tools and model, or those of the settings."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surelane_agents.agent_settings import agent_settings
from surelane_agents.people.access import Allow, Listed, allow
from surelane_agents.people.following import Follow
from surelane_agents.tools.functions import Tools, load
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
        skills: a folder of skills, which the model may load; else ``SURELANE_MODEL_SKILLS``.
        below: blocks below the last message of a turn, in place of the thumbs of ``SURELANE_MODEL_FEEDBACK``.
        patience: how long a question about a tool waits. After that the call is rejected.
        model: its model, or models that follow one another; else ``SURELANE_MODEL``.
        output: a pydantic model or a dataclass: the answer is one, as JSON, and is not said in the thread.
        guard: a function of ``"question"`` or ``"answer"`` and its text. It returns ``None``, or what the person is
            told instead. Each call is a step. Answers are then said when they are complete, and not streamed.
        unfurl: whether Slack shows previews of links in posted messages. It fetches the links for that, and a model
            that was instructed by others may put what it knows into one.
        follow: which messages of channels it answers that do not name it: ``thread``, those of threads where it has
            answered; ``mention``, none; ``all``. Else ``SURELANE_MODEL_FOLLOW``.
        steering: whose further messages of a thread join the turn that runs there: ``person``, those of the person
            whom it answers; ``everyone``, of all who may use it; ``off``, none. Else ``SURELANE_MODEL_STEERING``.
        allow: who may use it; else ``SURELANE_MODEL_ALLOW``.
        tools_allow: who may use tools that have no list of their own; else ``SURELANE_MODEL_TOOLS_ALLOW``.
    """

    instructions: str | None = None
    tools: Tools | None = None
    mcp: str | Path | None = None
    skills: str | Path | None = None
    below: Sequence[dict[str, Any]] | None = None
    patience: Pause = "1d"
    model: str | None = None
    output: type[Any] | None = None
    guard: Guard | None = None
    unfurl: bool = False
    follow: Follow | None = None
    steering: Literal["person", "everyone", "off"] | None = None
    allow: Listed | None = None
    tools_allow: Listed | None = None

    def all_tools(self) -> Tools:
        """Return the agent's own tools, or those that the settings name."""
        if self.tools is not None:
            return self.tools
        path = agent_settings().model_tools
        return load(path, Tools, "SURELANE_MODEL_TOOLS") if path else Tools()

    def allows(self) -> tuple[Allow, Allow]:
        """Return who may use it, and who its tools."""
        settings = agent_settings()
        return (
            allow(settings.model_allow if self.allow is None else self.allow),
            allow(settings.model_tools_allow if self.tools_allow is None else self.tools_allow),
        )

    def mcp_file(self) -> Path | None:
        return Path(self.mcp) if self.mcp is not None else agent_settings().model_mcp

    def skills_folder(self) -> Path | None:
        return Path(self.skills) if self.skills is not None else agent_settings().model_skills

"""An agent: instructions and tools for a model, and the handler that lets it answer an event.

It is declared before a worker starts, so nothing here imports the libraries of models.
"""

import importlib.util
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surelane.errors import SettingsError
from surelane.slack import place_of
from surelane_agents.agent_settings import agent_settings
from surelane_agents.people.access import Allow, Listed, allow
from surelane_agents.people.following import MENTIONED, Follow, says_stop, unheard
from surelane_agents.people.steering import Steering, joined
from surelane_agents.tools.functions import Tools, load
from surelane_service.subscriptions import IN_CHANNELS
from surelane_worker import Context, Event, Outcome
from surelane_worker.handling.outcomes import Pause
from surelane_worker.worker_settings import WorkerSettings

Guard = Callable[[Literal["question", "answer"], str], str | Awaitable[str | None] | None]
AGENTS: list["Agent"] = []
"""The agents of the process that have a model of their own. A worker makes these models when it starts."""


@dataclass(frozen=True)
class Agent:
    """A model with instructions and tools, and the handler that lets it answer.

    What is not given comes from :class:`AgentSettings`.

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
    steering: Steering | None = None
    allow: Listed | None = None
    tools_allow: Listed | None = None

    def __post_init__(self) -> None:
        if self.model is not None:
            AGENTS.append(self)

    async def turn(self, event: Event, ctx: Context) -> dict[str, Any] | Outcome:
        """Answer an event: a handler for mentions, direct messages and ``agent-turn`` jobs.

        The thread's messages, each response of the model and each call of a tool are steps. So a later attempt, or the
        next run after a person's approval, comes to the same place without asking the model or calling a tool again.
        The answer and the usage are returned for history. Of a message that is not for the agent, it returns why.
        """
        place = place_of(event.payload)
        if why := await unheard(event, ctx, place, self.follows()):
            return {"unhandled": why}
        if says_stop(event.slack) and event.kind in (MENTIONED, *IN_CHANNELS):
            await ctx.slack.react(event, "ok_hand")
            return {"answer": None, "stopped": "by a person"}
        if (ended := await joined(event, ctx, place, on=self.steers() != "off")) is not None:
            return ended
        from surelane_agents.answering import answer  # noqa: PLC0415 - it imports the libraries of models

        return await answer(self, event, ctx)

    def follows(self) -> Follow:
        return self.follow or agent_settings().model_follow

    def steers(self) -> Steering:
        return self.steering or agent_settings().model_steering

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

    def check(self, worker: WorkerSettings) -> None:
        """Import what a turn needs, because that takes seconds, and read its files, or raise :class:`SettingsError`."""
        self.check_model()
        from surelane_agents.tools.servers import servers  # noqa: PLC0415 - it imports the libraries of models
        from surelane_agents.tools.skills import skills  # noqa: PLC0415 - likewise

        self.all_tools()
        skills(self.skills_folder())
        accounts = any(server.account for server in servers(self.mcp_file()).values())
        if accounts and not (worker.installs and agent_settings().connect_url):
            raise SettingsError(
                "SURELANE_MODEL_MCP: an account needs SURELANE_CONNECT_URL, and installs (SLACK_CLIENT_ID)"
            )

    def check_model(self) -> None:
        """Make the model, or raise :class:`SettingsError`."""
        check_installed("SURELANE_MODEL")
        from surelane_agents.models.budget import budget_of  # noqa: PLC0415 - only with a model
        from surelane_agents.models.client import chained, model_of  # noqa: PLC0415 - it imports the libraries of models

        settings = agent_settings()
        models = chained(model_of(settings, self.model))
        budget_of(settings.model_budget).check({each.name: each for each in models})


def check_installed(setting: str) -> None:
    """Raise :class:`SettingsError` where the libraries of models are missing that a setting needs."""
    missing = [name for name in ("pydantic_ai", "openai", "fastmcp") if not importlib.util.find_spec(name)]
    if missing:
        how = "pip install --find-links DIRECTORY surelane-agents"
        raise SettingsError(f"{setting} needs packages that are not installed: {', '.join(missing)}; {how}")

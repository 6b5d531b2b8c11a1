"""What the worker takes of this package: the entry point ``agents`` of the group ``surelane.handlers``."""

from typing import Any

from surelane.events import Event
from surelane_agents import edits, feedback, metrics, rules
from surelane_agents.agent import Agent, check_models
from surelane_agents.agent_settings import AgentSettings, agent_settings
from surelane_service.service_settings import warn_of_misspelled
from surelane_worker.extensions import Extension
from surelane_worker.handling.context import Context
from surelane_worker.handling.handler import handler_of
from surelane_worker.handling.outcomes import Discard, Retry
from surelane_worker.handling.registry import Handlers, registered_in
from surelane_worker.worker_settings import WorkerSettings

SPOKEN = ("slack.app_mention", "slack.message.im", "agent-turn")
"""The kinds that the built-in agent answers: mentions, direct messages, and jobs from anywhere else."""
agent = Agent()
"""The built-in agent: it has the model, the instructions and the tools of the settings."""


def start(settings: WorkerSettings) -> None:
    """Check the settings, make the models, and count what they use.

    Raises:
        SettingsError: a model, its tools or its servers cannot be used.
    """
    warn_of_misspelled(AgentSettings)
    check_models()
    if agent_settings().model is not None:
        agent.check(settings)
    metrics.publish()


async def answer(event: Event, ctx: Context) -> dict[str, Any] | Retry | Discard:
    """Let the built-in agent answer, in Slack or in the result of an ``agent-turn``."""
    return await agent.turn(event, ctx)


def _answers(_: Event) -> bool:
    """Return whether a model is set. Without one the worker's own handlers quote what was received."""
    return agent_settings().model is not None


def _built_in() -> Handlers:
    handlers = Handlers()
    registered_in(handlers).add(handler_of(answer, SPOKEN, timeout="10m"), _answers)
    handlers.include(rules.handlers)
    return handlers


def _beside() -> Handlers:
    handlers = Handlers()
    handlers.include(feedback.handlers)
    handlers.include(edits.handlers)
    return handlers


EXTENSION = Extension(built_in=_built_in(), beside=_beside(), start=start)

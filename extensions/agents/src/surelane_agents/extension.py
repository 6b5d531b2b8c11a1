"""What the worker takes of this package: the entry point ``agents`` of the group ``surelane.handlers``."""

from functools import cache
from typing import Any

from surelane_agents.agent import AGENTS, Agent, check_installed
from surelane_agents.agent_settings import AgentSettings, agent_settings
from surelane_agents.models import metrics
from surelane_agents.people import edits, feedback, rules
from surelane_agents.reply import session
from surelane_service.service_settings import warn_of_misspelled
from surelane_service.subscriptions import IN_CHANNELS
from surelane_worker import Context, Event, Handlers, Outcome
from surelane_worker.extensions import Extension
from surelane_worker.handling.handler import handler_of
from surelane_worker.handling.registry import registered_in
from surelane_worker.worker_settings import WorkerSettings

SPOKEN = ("slack.app_mention", "slack.message.im", "agent-turn")
"""The kinds that the built-in agent answers: mentions, direct messages, and jobs from anywhere else."""
_TYPES = frozenset(kind.removeprefix("slack.") for kind in IN_CHANNELS)
agent = Agent()
"""The built-in agent: it has the model, the instructions and the tools of the settings."""


def start(settings: WorkerSettings) -> None:
    """Check the settings, make the models, and count what they use. It raises :class:`SettingsError`."""
    warn_of_misspelled(AgentSettings)
    for each in AGENTS:
        each.check_model()
    if agent_settings().model_embeddings is not None:
        check_installed("SURELANE_MODEL_EMBEDDINGS")
        _embed_memories()
    if agent_settings().model is not None:
        agent.check(settings)
        # A mention may come as a message of its channel.
        taken = _TYPES if settings.event_types is None else _TYPES & settings.event_types
        if agent_settings().model_follow == "thread" or taken:
            _hear_channels()
    metrics.publish()


async def answer(event: Event, ctx: Context) -> dict[str, Any] | Outcome:
    """Let the built-in agent answer, in Slack or in the result of an ``agent-turn``."""
    return await agent.turn(event, ctx)


def _embeds(_: Event) -> bool:
    return agent_settings().model_embeddings is not None


def _answers(_: Event) -> bool:
    """Return whether a model is set. Without one the worker's own handlers quote what was received."""
    return agent_settings().model is not None


def _built_in() -> Handlers:
    handlers = Handlers()
    registered_in(handlers).add(handler_of(answer, SPOKEN, timeout="10m"), _answers)
    handlers.include(rules.handlers)
    handlers.include(rules.memory_handlers)
    return handlers


@cache
def _hear_channels() -> None:
    """Let the built-in agent get the messages of channels. Without a model nothing should claim them."""
    registered_in(EXTENSION.built_in).add(handler_of(answer, IN_CHANNELS, timeout="10m"), _answers)


@cache
def _embed_memories() -> None:
    """Let the model of the settings make vectors, in place of the handler that makes none."""
    from surelane_agents.models.embeddings import embed, embedding_model  # noqa: PLC0415 - only with a model

    embedding_model(agent_settings())
    registered_in(EXTENSION.built_in).add(handler_of(embed, ("embed-memories",), timeout="5m"), _embeds)


def _beside() -> Handlers:
    handlers = Handlers()
    handlers.include(feedback.handlers)
    handlers.include(edits.handlers)
    if agent_settings().model is not None or AGENTS:
        handlers.include(session.handlers)
    return handlers


EXTENSION = Extension(built_in=_built_in(), beside=_beside, start=start)

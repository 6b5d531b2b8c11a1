"""The settings of agents, read from the environment."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import ByteSize, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings

from surelane_agents.context.room import FileRoom
from surelane_agents.people.access import AllowText
from surelane_service.common.durations import Duration
from surelane_service.service_settings import FROM_ENVIRONMENT, load_settings


class AgentSettings(BaseSettings):
    """The settings of agents. The variable of each is its name in capitals, behind ``SURELANE_``."""

    model_config = FROM_ENVIRONMENT

    model_url: str | None = None
    """The address of an OpenAI-compatible API, such as ``https://api.openai.com/v1``."""

    model: str | None = None
    """The model with which the built-in handlers answer: ``anthropic:claude-sonnet-4-5``, or several in turn.

    A name without a provider is one at ``SURELANE_MODEL_URL``.
    """

    model_key: SecretStr | None = None

    model_instructions: str = (
        "You answer people in Slack, in Markdown. Be brief. Use your tools where they help."
    )

    model_tools: str | None = None
    """``module:attribute`` of the :class:`Tools` that the model may call."""

    model_mcp: Path | None = None
    """A file that names MCP servers, whose tools the model may call."""

    model_skills: Path | None = None
    """A folder of skills, which the model loads when it needs them."""

    model_allow: AllowText = "everyone"
    """Who may use agents, and in which channels."""

    model_tools_allow: AllowText = "members"
    """Who may use the tools that have no list of their own."""

    model_requests: Annotated[int, Field(ge=1, le=1000)] = 10
    """How often one turn may ask the model."""

    model_tokens: Annotated[int, Field(ge=1)] = 200_000
    """After how many tokens, input and output, one turn asks the model no more."""

    model_budget: Path | None = None
    """A file of prices and limits: see :class:`surelane_agents.models.budget.Budget`."""

    model_timeout: Duration = Field("1m", validate_default=True)
    """How long the model's server may be silent."""

    model_files: Annotated[int, Field(ge=0, le=20)] = 5
    """How many files that people attach to a message the model gets; 0: none."""

    file_memory: Annotated[ByteSize, Field(ge=2**20)] = ByteSize(64 * 2**20)
    """Bytes that files on their way to models may take in this process. Turns wait for it."""

    model_edited: Literal["restart", "ignore"] = "restart"
    """``restart``: a turn whose message is edited or deleted is cancelled, and an edited one answered anew."""

    model_follow: Literal["thread", "mention"] = "thread"
    """``thread``: agents hear the further messages of a thread in which they answer; ``mention``: mentions alone."""

    model_steering: Literal["person", "everyone", "off"] = "person"
    """Whose further messages join a turn that runs: those of the person whom it answers, everyone's, or none."""

    model_feedback: bool = True
    """Whether people can rate the answers of agents that have no blocks of their own below them."""

    model_embeddings: str | None = None
    """The model that makes the vectors of ``embed-memories``, such as ``openai:text-embedding-3-small``."""

    connect_url: str | None = Field(None, pattern=r"^https?://[^\s?#]+$")
    """The public address of ingest's ``/slack/install``, where people connect accounts."""

    @cached_property
    def file_room(self) -> FileRoom:
        """The memory of ``SURELANE_FILE_MEMORY``, which all turns share."""
        return FileRoom(self.file_memory)

    @model_validator(mode="after")
    def _model(self) -> Self:
        names = [] if self.model is None else [name.strip() for name in self.model.split(",")]
        if not all(names) or (self.model_url is not None and not names):
            raise ValueError("SURELANE_MODEL is the name of a model, or several separated by commas")
        if self.model_url is None and not all(":" in name for name in names):
            raise ValueError(
                "set both SURELANE_MODEL_URL and SURELANE_MODEL, or name a provider: anthropic:claude-sonnet-4-5"
            )
        if self.model_url is not None:
            parts = urlsplit(self.model_url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
                raise ValueError(
                    "SURELANE_MODEL_URL is an http or https address without credentials,"
                    " such as https://api.openai.com/v1"
                )
        return self


_used: list[AgentSettings] = []
"""The settings of the process, and behind them those of blocks of :func:`using`."""


def agent_settings() -> AgentSettings:
    """Return the settings of this process. The environment is read once.

    Raises:
        SettingsError: they cannot be used.
    """
    if not _used:
        _used.append(load_settings(AgentSettings))
    return _used[-1]


@contextmanager
def using(settings: AgentSettings) -> Iterator[None]:
    """Let agents use these settings in the block: tests run several bots in one process."""
    _used.append(settings)
    try:
        yield
    finally:
        _used.remove(settings)

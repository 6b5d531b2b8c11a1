"""The worker's settings, read from the environment."""

import os
import secrets
import socket
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from surelane_service.common.durations import Duration, parse_duration
from surelane_service.engine import DEFAULT_MAX_ATTEMPTS, SHORTEST_RETENTION
from surelane_service.service_settings import DEMO_BOT_TOKEN, InstallSettings, split
from surelane_service.subscriptions import TYPES
from surelane_worker.remote_agents import DispatchSettings

BUILT_IN_HANDLERS = "surelane_worker.builtin:handlers"
FAILURE_REPLY = "Sorry, something went wrong, and I could not finish this."


def _name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


def _kept(value: object) -> timedelta | None:
    """Read how long something is kept: a duration, or ``off``."""
    off = value is None or (isinstance(value, str) and value.strip().lower() == "off")
    return None if off else parse_duration(value)


def _long_enough(kept: timedelta | None) -> timedelta | None:
    if kept is not None and kept < SHORTEST_RETENTION:
        raise ValueError("history is kept for at least 3d, because duplicates are found there; off keeps all")
    return kept


Kept = Annotated[timedelta | None, BeforeValidator(_kept)]
Thousand = Annotated[int, Field(ge=1, le=1000)]


class WorkerSettings(InstallSettings, DispatchSettings):
    """The worker's settings."""

    handlers: str = BUILT_IN_HANDLERS
    """``module:attribute`` of the :class:`Handlers` to run. The built-in ones handle every documented kind."""

    event_types: Annotated[frozenset[str] | None, NoDecode, BeforeValidator(split)] = Field(
        None, validation_alias=TYPES
    )
    """Ingest's setting, if the worker gets it too. The worker warns of handlers whose events cannot arrive."""

    bot_messages: bool = False
    """Ingest's setting: messages of other apps' bots are handled."""

    slack_bot_token: SecretStr | None = Field(None, validation_alias="SLACK_BOT_TOKEN")
    """The bot's token in the one workspace. It is not used where installs are on."""

    failure_reply: str = Field(FAILURE_REPLY, max_length=1000)
    """What a person is told who spoke to the bot, where that failed. ``off``: nothing."""

    install_wait: Duration = Field("1h", validate_default=True)
    """How long an event waits for its workspace to install the app, if installs are on. Then it fails."""

    slack_limits: Literal["on", "non-marketplace", "off"] = "on"
    """Which of Slack's rate limits the workers keep. ``non-marketplace``: those of apps that are sold outside of it."""

    concurrency: Thousand = 10
    """How many handlers run at once in this process."""

    interactive_concurrency: Thousand = 4
    """How many handlers of commands and interactions run at once, beside those of ``SURELANE_CONCURRENCY``."""

    poll_interval: Duration = Field("5s", validate_default=True)
    """How often the worker polls the queue when no notification comes."""

    notifications: bool = True
    """``off`` behind a transaction pooler: the worker then polls only, and prepares no statements."""

    lease: Duration = Field("10m", validate_default=True)
    """How long a claim stands without a heartbeat. Heartbeats renew it while its handler runs."""

    session_grace: Duration = Field("1s", validate_default=True)
    """How long a worker whose listening connection broke may take to open another, before its events go to others."""

    claim_bytes: Annotated[int, Field(ge=1)] = 32 * 2**20
    """Bytes of events and unsettled outcomes above which a worker claims no more. It needs five times as much."""

    max_attempts: Thousand = DEFAULT_MAX_ATTEMPTS
    """Attempts of events that have no maximum of their own. Stored with the kinds, for every worker's sweep."""

    max_vt_age: Duration = Field("1h", validate_default=True)
    """A Slack event expires if it is visible for longer than this and not claimed."""

    backoff_base: Duration = Field("10s", validate_default=True)
    backoff_cap: Duration = Field("1h", validate_default=True)
    """A failed event waits for ``base * attempt²``, at most ``cap``."""

    drain_timeout: Duration = Field("30s", validate_default=True)
    """How long running handlers may continue after SIGTERM."""

    sweep_interval: Duration = Field("1m", validate_default=True)
    """How often the sweep moves exhausted and expired events to history."""

    handler_timeout: Kept = None
    """How long an attempt may take whose handler names no timeout of its own. ``off``: as long as it needs."""

    history_retention: Annotated[Kept, AfterValidator(_long_enough)] = timedelta(days=90)
    """For how long after its event a row of history is kept. ``off``: this worker drops none."""

    erase_uninstalled_after: Kept = None
    """How long after a workspace removed the app its data is erased. ``off``: never."""

    process_span: Literal["child", "linked"] = "child"
    """Whether an attempt continues the trace that stored its event, or starts a trace with a link to it."""

    name: str = Field(
        default_factory=_name, validation_alias="SURELANE_WORKER_NAME", min_length=1, max_length=200
    )
    """The worker's name in ``claimed_by``. It must differ between processes."""

    @model_validator(mode="after")
    def _positive(self) -> Self:
        shortest_of = {"poll_interval": 0.01, "lease": 1.0, "session_grace": 0.1, "sweep_interval": 0.1}
        for name, shortest in shortest_of.items():
            if getattr(self, name).total_seconds() < shortest:
                raise ValueError(f"SURELANE_{name.upper()} must be at least {shortest}s")
        self.refuse_demo_secret("SLACK_BOT_TOKEN", self.bot_token)
        return self

    @property
    def bot_token(self) -> str | None:
        """Slack's token, or a demo token if the Web API is not Slack's own; ``None`` with installs, or without any."""
        if self.installs:
            return None
        if self.slack_bot_token is not None:
            return self.slack_bot_token.get_secret_value()
        return None if self.speaks_to_slack else DEMO_BOT_TOKEN

    @property
    def answers(self) -> bool:
        """Whether there are tokens: one, or those of installs."""
        return self.bot_token is not None or self.installs

"""An agent: instructions and tools for a model, and the handler that lets it answer an event."""

import importlib.util
from dataclasses import dataclass
from typing import Any

from surelane.errors import SettingsError
from surelane.events import Event
from surelane_agents.agent_settings import agent_settings
from surelane_agents.errors import ModelRefusedError, StoppedError, UnavailableError
from surelane_agents.rules import heard
from surelane_agents.setup import Setup
from surelane_agents.thread import TURN, looked_at, quoted
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.handling.outcomes import Discard, Retry
from surelane_worker.worker_settings import WorkerSettings

DOWN = "I cannot answer now: the model does not respond. Please ask again later."
REFUSED = "I cannot answer this. The people who run me can see why."
LONGEST_QUESTION = 20_000
"""Characters of the message that is answered. The rest is cut."""
AGENTS: list["Agent"] = []
"""The agents of the process that have a model of their own. A worker makes these models when it starts."""


@dataclass(frozen=True)
class Agent(Setup):
    """A model with instructions and tools, and the handler that lets it answer. :class:`Setup` has its attributes."""

    def __post_init__(self) -> None:
        if self.model is not None:
            AGENTS.append(self)

    async def turn(self, event: Event, ctx: Context) -> dict[str, Any] | Retry | Discard:
        """Answer an event: a handler for mentions, direct messages and ``agent-turn`` jobs.

        The thread's messages, each response of the model and each call of a tool are steps. So a later attempt, or the
        next run after a person's approval, comes to the same place without asking the model or calling a tool again.
        The answer and the usage are returned for history.
        """
        from surelane_agents.client import model_of, times_in_memory  # noqa: PLC0415 - likewise
        from surelane_agents.files import Attached, referred  # noqa: PLC0415 - it imports the libraries of models
        from surelane_agents.run import AgentTurn  # noqa: PLC0415 - likewise
        from surelane_agents.voice import Voice  # noqa: PLC0415 - likewise

        voice = Voice(event, ctx, unfurl=self.unfurl)
        said = await ctx.step(TURN, heard, event, ctx, voice.place)
        text = event.text[:LONGEST_QUESTION]
        asked = quoted(voice.place.user, text) + looked_at(event)
        last = attempt_of(ctx).attempts >= (event.max_attempts or ctx.settings.max_attempts)
        references = await referred(event, ctx, last=last)
        settings = agent_settings()
        times = times_in_memory(model_of(settings, self.model))
        files = Attached(ctx, asked, references, settings.file_room, times, last)
        run = AgentTurn(self, ctx, event, voice, files)
        try:
            answer = await run.answer(asked, said)
        except StoppedError as stopped:
            await voice.say(str(stopped))
            return run.report(stopped.answer, stopped=str(stopped))
        except ModelRefusedError as error:
            await voice.say(REFUSED)
            return Discard(str(error))
        except UnavailableError as error:
            if last:
                await voice.say(DOWN)
                return Discard(str(error))
            if error.after:
                return Retry(error.after, str(error))
            raise
        finally:
            files.close()
        return run.report(answer)

    def check(self, worker: WorkerSettings) -> None:
        """Import what a turn needs, because that takes seconds, and read its files, or raise :class:`SettingsError`."""
        self.check_model()
        from surelane_agents.servers import servers  # noqa: PLC0415 - it imports the libraries of models

        self.all_tools()
        accounts = any(server.account for server in servers(self.mcp_file()).values())
        if accounts and not (worker.installs and agent_settings().connect_url):
            raise SettingsError(
                "SURELANE_MODEL_MCP: an account needs SURELANE_CONNECT_URL, and installs (SLACK_CLIENT_ID)"
            )

    def check_model(self) -> None:
        """Make the model, or raise :class:`SettingsError`."""
        missing = [
            name for name in ("pydantic_ai", "openai", "fastmcp") if not importlib.util.find_spec(name)
        ]
        if missing:
            raise SettingsError(
                f"SURELANE_MODEL needs packages that are not installed: {', '.join(missing)};"
                " pip install surelane-agents"
            )
        from surelane_agents.budget import budget_of  # noqa: PLC0415 - only with a model
        from surelane_agents.client import model_of, names_of  # noqa: PLC0415 - it imports the libraries of models

        settings = agent_settings()
        model_of(settings, self.model)
        budget_of(settings.model_budget).check(names_of(self.model or settings.model or ""))


def check_models() -> None:
    """Make the models that agents name themselves, or raise :class:`SettingsError`."""
    for agent in AGENTS:
        agent.check_model()

"""An agent: instructions and tools for a model, and the handler that lets it answer an event."""

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surelane.errors import SettingsError
from surelane.events import Event
from surelane.slack import Place, place_of
from surelane.text import shown_beside
from surelane_agents.agent_settings import agent_settings
from surelane_agents.context.person import PERSON, person_of
from surelane_agents.context.thread import TURN, cut, looked_at, quoted
from surelane_agents.errors import ModelRefusedError, StoppedError, UnavailableError
from surelane_agents.people.access import Access, Allow, allow, refuse
from surelane_agents.people.following import MENTIONED, is_named, says_stop, unheard
from surelane_agents.people.rules import heard
from surelane_agents.people.steering import WORD, Steered, joined
from surelane_agents.setup import Setup
from surelane_service.subscriptions import IN_CHANNELS
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.handling.outcomes import Discard, Outcome, Retry
from surelane_worker.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from surelane_agents.reply.voice import Voice

DOWN = "I cannot answer now: the model does not respond. Please ask again later."
REFUSED = "I cannot answer this. The people who run me can see why."
LONGEST_QUESTION = 20_000
"""Characters of the message that is answered. The rest is cut."""
ANEW = "I begin anew: I no longer see what was said here before."
AGENTS: list["Agent"] = []
"""The agents of the process that have a model of their own. A worker makes these models when it starts."""


@dataclass(frozen=True)
class Agent(Setup):
    """A model with instructions and tools, and the handler that lets it answer. :class:`Setup` has its attributes."""

    def __post_init__(self) -> None:
        if self.model is not None:
            AGENTS.append(self)

    async def turn(self, event: Event, ctx: Context) -> dict[str, Any] | Outcome:
        """Answer an event: a handler for mentions, direct messages and ``agent-turn`` jobs.

        The thread's messages, each response of the model and each call of a tool are steps. So a later attempt, or the
        next run after a person's approval, comes to the same place without asking the model or calling a tool again.
        The answer and the usage are returned for history. Of a message that is not for the agent, it returns why.
        """
        from surelane_agents.reply.voice import Voice  # noqa: PLC0415 - it imports the libraries of models

        place = place_of(event.payload)
        if why := await unheard(event, ctx, place, self.follow or agent_settings().model_follow):
            return {"unhandled": why}
        if says_stop(event.slack) and event.kind in (MENTIONED, *IN_CHANNELS):
            await ctx.slack.react(event, "ok_hand")
            return {"answer": None, "stopped": "by a person"}
        steering = self.steering or agent_settings().model_steering
        if (ended := await joined(event, ctx, place, on=steering != "off")) is not None:
            return ended
        voice = Voice(event, ctx, unfurl=self.unfurl)
        outcome = await self._answer(event, ctx, voice)
        if not isinstance(outcome, Retry):
            await voice.session.close()
        return outcome

    async def _answer(self, event: Event, ctx: Context, voice: "Voice") -> dict[str, Any] | Retry | Discard:
        from surelane_agents.context.files import Attached, referred  # noqa: PLC0415 - it imports the libraries of models
        from surelane_agents.models.client import model_of, times_in_memory  # noqa: PLC0415 - likewise
        from surelane_agents.models.compaction import compact  # noqa: PLC0415 - likewise
        from surelane_agents.run import AgentTurn  # noqa: PLC0415 - likewise

        last = attempt_of(ctx).attempts >= (event.max_attempts or ctx.settings.max_attempts)
        who, tools = self.allows()
        # Groups and the last attempt may differ between attempts, so they are no arguments of the step.
        groups = self.groups()
        person = await ctx.step(PERSON, lambda: person_of(event, ctx, voice.place, groups, last=last))
        if not who.permits(person, voice.place.channel):
            if not is_named(event):
                return {"unhandled": "its author may not use the agent"}
            return await refuse(event, ctx, person, voice.place.channel)
        word = WORD.fullmatch(event.text)
        if word and word[1] == "new":
            await ctx.step(TURN, list)
            await voice.say(ANEW)
            return {"answer": ANEW}
        said = await ctx.step(TURN, heard, event, ctx, voice.place)
        beside = shown_beside(event.slack) if event.kind.startswith("slack.") else ""
        text = cut("\n".join(filter(None, [event.text, beside])), LONGEST_QUESTION)
        asked = quoted(voice.place.user, text) + looked_at(event)
        references = await referred(event, said, ctx, last=last)
        settings = agent_settings()
        times = times_in_memory(model_of(settings, self.model))
        files = Attached(ctx, asked, references, settings.file_room, times, last)
        access = Access(person, voice.place.channel, tools)
        joining = self._joining(event, ctx, voice.place, who, last=last)
        run = AgentTurn(self, ctx, event, voice, files, access, joining)
        try:
            if word:
                answer = await compact(run, said)
                await voice.say(answer)
            else:
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

    def _joining(self, event: Event, ctx: Context, turn: Place, who: Allow, *, last: bool) -> Steered:
        steering = self.steering or agent_settings().model_steering
        follow = self.follow or agent_settings().model_follow

        async def joins(message: Event, place: Place) -> bool:
            own = place.user == turn.user
            if not own and steering == "person":
                return False
            if await unheard(message, ctx, place, follow, further=True):
                return False
            return own or who.permits(
                await person_of(message, ctx, place, self.groups(), last=last), place.channel
            )

        return Steered(event, ctx, turn, None if steering == "off" else joins)

    def groups(self) -> set[str]:
        """Return the user groups that its lists, its tools' and its servers' name."""
        from surelane_agents.tools.servers import servers  # noqa: PLC0415 - it imports the libraries of models

        own = [each.allow for each in (*self.all_tools(), *servers(self.mcp_file()).values())]
        lists = [*self.allows(), *(allow(each) for each in own if each is not None)]
        return {group for each in lists for group in each.groups}

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
        missing = [
            name for name in ("pydantic_ai", "openai", "fastmcp") if not importlib.util.find_spec(name)
        ]
        if missing:
            raise SettingsError(
                f"SURELANE_MODEL needs packages that are not installed: {', '.join(missing)};"
                " pip install --find-links DIRECTORY surelane-agents"
            )
        from surelane_agents.models.budget import budget_of  # noqa: PLC0415 - only with a model
        from surelane_agents.models.client import chained, model_of  # noqa: PLC0415 - it imports the libraries of models

        settings = agent_settings()
        models = chained(model_of(settings, self.model))
        budget_of(settings.model_budget).check({each.name: each for each in models})


def check_models() -> None:
    """Make the models that agents name themselves, or raise :class:`SettingsError`."""
    for agent in AGENTS:
        agent.check_model()

"""Answer an event with an agent: who asks, what was said before, and how the turn ends."""

from collections.abc import Awaitable
from typing import Any

from surelane.slack import Place
from surelane.text import shown_beside
from surelane_agents.agent import Agent
from surelane_agents.agent_settings import agent_settings
from surelane_agents.context.files import Attached, referred
from surelane_agents.context.thread import TURN, cut, looked_at, quoted
from surelane_agents.errors import DOWN, REFUSED, ModelRefusedError, StoppedError, UnavailableError
from surelane_agents.models.client import model_of, times_in_memory
from surelane_agents.models.compaction import compact
from surelane_agents.people.access import PERSON, Access, allow, person_of, refuse
from surelane_agents.people.following import is_named, unheard
from surelane_agents.people.rules import heard
from surelane_agents.people.steering import WORD, Steered
from surelane_agents.reply.voice import Voice
from surelane_agents.run import AgentTurn
from surelane_agents.tools.servers import servers
from surelane_worker import Context, Discard, Event, Retry
from surelane_worker.handling.context import attempt_of

LONGEST_QUESTION = 20_000
"""Characters of the message that is answered. The rest is cut."""
ANEW = "I begin anew: I no longer see what was said here before."


async def answer(agent: Agent, event: Event, ctx: Context) -> dict[str, Any] | Retry | Discard:
    """Answer an event, and close the agent session of its thread unless another attempt follows."""
    voice = Voice(event, ctx, unfurl=agent.unfurl)
    outcome = await _answer(agent, event, ctx, voice)
    if not isinstance(outcome, Retry):
        await voice.session.close()
    return outcome


async def _answer(agent: Agent, event: Event, ctx: Context, voice: Voice) -> dict[str, Any] | Retry | Discard:
    place, last = voice.place, attempt_of(ctx).attempts >= (event.max_attempts or ctx.settings.max_attempts)
    who, tools = agent.allows()
    # Groups and the last attempt may differ between attempts, so they are no arguments of the step.
    groups = groups_of(agent)
    person = await ctx.step(PERSON, lambda: person_of(event, ctx, place, groups, last=last))
    if not who.permits(person, place.channel):
        if not is_named(event):
            return {"unhandled": "its author may not use the agent"}
        return await refuse(event, ctx, person, place.channel)
    word = WORD.fullmatch(event.text)
    if word and word[1] == "new":
        await ctx.step(TURN, list)
        await voice.say(ANEW)
        return {"answer": ANEW}
    said = await ctx.step(TURN, heard, event, ctx, place)
    beside = shown_beside(event.slack) if event.kind.startswith("slack.") else ""
    text = cut("\n".join(filter(None, [event.text, beside])), LONGEST_QUESTION)
    asked = quoted(place.user, text) + looked_at(event)
    references, settings = await referred(event, said, ctx, last=last), agent_settings()
    times = times_in_memory(model_of(settings, agent.model))
    files = Attached(ctx, asked, references, settings.file_room, times, last)

    async def joins(message: Event, at: Place) -> bool:
        own = at.user == place.user
        if not own and agent.steers() == "person":
            return False
        if await unheard(message, ctx, at, agent.follows(), further=True):
            return False
        return own or who.permits(await person_of(message, ctx, at, groups, last=last), at.channel)

    joining = Steered(event, ctx, place, None if agent.steers() == "off" else joins)
    run = AgentTurn(agent, ctx, event, voice, files, Access(person, place.channel, tools), joining)
    return await _ended(run, compact(run, said) if word else run.answer(asked, said))


async def _ended(run: AgentTurn, answering: Awaitable[Any]) -> dict[str, Any] | Retry | Discard:
    """Return how a turn ends, and tell people where it ends early."""
    try:
        return run.report(await answering)
    except StoppedError as stopped:
        await run.voice.say(str(stopped))
        return run.report(stopped.answer, stopped=str(stopped))
    except ModelRefusedError as error:
        await run.voice.say(REFUSED)
        return Discard(str(error))
    except UnavailableError as error:
        if run.files.last:
            await run.voice.say(DOWN)
            return Discard(str(error))
        if error.after:
            return Retry(error.after, str(error))
        raise
    finally:
        run.files.close()


def groups_of(agent: Agent) -> set[str]:
    """Return the user groups that an agent's lists, its tools' and its servers' name."""
    own = [each.allow for each in (*agent.all_tools(), *servers(agent.mcp_file()).values())]
    lists = [*agent.allows(), *(allow(each) for each in own if each is not None)]
    return {group for each in lists for group in each.groups}

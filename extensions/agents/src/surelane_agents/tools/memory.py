"""Tools that remember something of a person or a channel for later conversations, and forget it."""

from hashlib import sha256
from typing import Literal

from pydantic_ai import RunContext, ToolFailed

from surelane_agents.calls import AgentCalls, Rule, patiently
from surelane_agents.people.board import LONGEST, about, cleaned, put, stored_about
from surelane_agents.people.rules import MEMORY
from surelane_worker import Context, Event
from surelane_worker.handling.context import attempt_of

Whose = Literal["person", "channel"]


async def remember(run: RunContext[Context], text: str, whose: Whose = "person") -> str:
    """Remember one lasting fact or wish in all later conversations with the person who asks, or in this channel.

    Use it when people ask for it, or tell what will still matter in weeks. Write one short sentence. Remember no
    secrets. Whoever asks in a channel can see what is remembered of the channel.
    """
    event, line = attempt_of(run.deps).events[0], cleaned(text)
    if not line or len(text) > LONGEST:
        raise ToolFailed(f"a memory is a sentence of up to {LONGEST} characters")
    key, known = await _known(run.deps, event, whose)
    if any(said == line for _, _, said, _ in known):
        return "It was remembered before."
    # The same in each attempt, so a call that is repeated after a crash stores nothing twice.
    digest = sha256(f"{event.id} {run.run_step} {run.tool_call_id}".encode()).digest()
    identity = -1 - (int.from_bytes(digest[:8]) >> 1)  # no event's id
    if not await put(run.deps, event, identity, key, line):
        raise ToolFailed(f"{MEMORY.most} memories are there already: forget one first")
    return "Remembered."


async def forget(run: RunContext[Context], text: str, whose: Whose = "person") -> str:
    """Forget something that is remembered of the person who asks, or of this channel. Give its text as you got it."""
    event, line = attempt_of(run.deps).events[0], cleaned(text)
    key, known = await _known(run.deps, event, whose)
    gone = [identity for identity, _, said, _ in known if said == line]
    if not gone:
        raise ToolFailed("nothing of this text is remembered there")
    for identity in gone:
        await patiently(run.deps, AgentCalls.drop_rule, about(event)[0], key, identity)
    return "Forgotten."


async def _known(ctx: Context, event: Event, whose: Whose) -> tuple[str, list[Rule]]:
    """Return the key of what is remembered so, and what is."""
    workspace, channel, person = about(event)
    of = person if whose == "person" else channel
    if not workspace or not of or not person:
        raise ToolFailed(f"there is no {whose} to remember it for")
    key = f"{MEMORY.prefix}{of}"
    return key, await stored_about(ctx, workspace, [key])

"""Give a model the rules that people set in Slack, as the wishes of a person, a channel or a workspace."""

import re
from collections.abc import Sequence

from surelane.events import Event
from surelane.slack import Place, place_of, reporter_of, text_at
from surelane_service.conversations import Rule
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.model.thread import Said, before, quiet

MOST, LONGEST = 10, 300
"""Rules of one person, channel or workspace (``agent.set_rule`` has the same number), and characters of one."""
WHOSE = "This workspace", "This channel", "This person"
WISHES = "(People have set rules for your answers: wishes, to follow where your instructions allow it.)"
_QUOTES = re.compile('["\u201c-\u201f\u00ab\u00bb\u2033\u300c-\u300f\uff02]')


def about(event: Event) -> list[str]:
    """Return the workspace that installed the app, the channel and the person of an event: whose rules hold."""
    place, opened_in = place_of(event.payload), text_at(event.payload, (("view", "private_metadata"),))
    workspace = reporter_of(event.payload)[1] or place.workspace
    return [workspace or "", place.channel or opened_in or "", place.user or ""]


async def rules_about(ctx: Context, ids: Sequence[str]) -> list[Rule]:
    """Return the rules about these ids, the workspace's first."""
    fence = attempt_of(ctx).steps.fence
    return await fence.patiently(fence.engine.read_rules, ids[0], ids) if ids[0] else []


async def heard(event: Event, ctx: Context, place: Place) -> list[Said]:
    """Return what a model gets before a message: the rules, as one message of people's, and the thread."""
    ids = about(event)
    whose = dict(zip(ids, WHOSE, strict=True))
    rules = await rules_about(ctx, ids)
    lines = [f'{whose[of]}, set by <@{by}>: "{text}"' for _, of, text, by in rules if text]
    said: list[Said] = [{"own": False, "text": "\n".join([WISHES, *lines])}] if lines else []
    return said + await before(event, ctx, place)


def cleaned(text: str) -> str:
    """Return a text as it is stored: one line of what can be seen, which ends no quotation and alarms no channel."""
    line = "".join(each for each in " ".join(text.split()) if each.isprintable())
    return quiet(_QUOTES.sub("'", line)).strip()[:LONGEST]

"""Give a model the rules that people set in Slack, as the wishes of a person, a channel or a workspace."""

import re
from collections.abc import Mapping

from surelane.events import Event
from surelane.slack import Place, place_of, reporter_of
from surelane_service.rules import Rule
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.model.thread import Said
from surelane_worker.model.voice import quiet

MOST = 10
"""Rules of one person, channel or workspace; the database's number, too (``agent.set_rule``)."""
LONGEST = 300
"""Characters of a rule."""
INTRODUCTION = (
    "(People have set rules for your answers. Each is quoted below, behind those whose rule it is."
    " They are wishes of these people. Follow them where your instructions allow it.)"
)
_QUOTES = re.compile('["\u201c-\u201f\u00ab\u00bb\u2033\u300c-\u300f\uff02]')


def workspace_of(event: Event) -> str:
    """Return the workspace whose rules hold for an event: the one that installed the app, in a shared channel, too."""
    return reporter_of(event.payload)[1] or place_of(event.payload).workspace or ""


def scopes_of(place: Place) -> Mapping[str, str]:
    """Return whom rules are about, by their scope: the workspace (empty), then the channel, then the person."""
    return {"workspace": "", "channel": place.channel or "", "person": place.user or ""}


async def rules_of(ctx: Context, workspace: str, place: Place) -> list[Rule]:
    """Return the rules that apply, in the order of the scopes. Those that are set later come later."""
    fence = attempt_of(ctx).steps.fence
    about = list(dict.fromkeys(scopes_of(place).values()))
    return await fence.patiently(fence.engine.read_rules, workspace, about) if workspace else []


async def wishes(event: Event, ctx: Context, place: Place) -> list[Said]:
    """Return the rules for an event's answer as one message of people's. The model gets it before the thread."""
    rules = await rules_of(ctx, workspace_of(event), place)
    lines = [f'{_whose(rule, place)}: "{quoted(rule.text)}"' for rule in rules if rule.text is not None]
    return [{"own": False, "text": "\n".join([INTRODUCTION, *lines])}] if lines else []


def _whose(rule: Rule, place: Place) -> str:
    if rule.about == place.user:
        return f"<@{rule.about}>"
    return f"This {'channel' if rule.about else 'workspace'}, set by <@{rule.set_by}>"


def quoted(text: str) -> str:
    """Return a rule's text without what could end its quotation, or alarm a channel."""
    return quiet(_QUOTES.sub("'", text))


def cleaned(text: str) -> str:
    """Return a text as one line of what can be seen, as it is stored."""
    line = " ".join(text.split())
    return "".join(each for each in line if each.isprintable()).strip()[:LONGEST]

"""Slack's limits: how often an app may call each method in one workspace, and whose turn it is at one of them.

The numbers are the minimums that Slack documents. For "several hundred per minute" and "short bursts", we chose careful
numbers. Methods that take no bot's token, such as ``admin.*``, are not listed.
"""

import asyncio
from bisect import insort
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from surelane.calls import Calls, Connection, Pool

LONGEST_WAIT = 120.0
"""Most seconds that a call waits for its turn. Its handler keeps its slot and its lease meanwhile."""
LATE = 0.4
"""Seconds by which a busy process may use a turn late."""
UNSTEADY = 0.3
"""Seconds by which the times of two calls on their way to Slack may differ."""
HANDFUL = 4
"""Most spare calls. A worker also asks the database at once if so many callers wait."""
LEAD = 1.0
"""A worker asks for further turns so many seconds before its last leased turn."""

MINUTE = 60.0

Apps = Literal["on", "non-marketplace"]
"""The limits of an app: the usual ones, or those of apps that are sold outside of Slack's Marketplace."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit on the calls in any window of ``seconds``, per workspace or per channel."""

    calls: int
    seconds: float = MINUTE
    per_channel: bool = False


TIER_1, TIER_2, TIER_3, TIER_4 = (Rule(calls) for calls in (1, 20, 50, 100))
SPECIAL = Rule(100, 10.0)
"""Hundreds per minute."""
CHANNEL = Rule(4, 4.0, per_channel=True)
"""One per second in a channel, with short bursts."""
POSTS = Rule(100, 20.0)
"""Several hundred messages per minute in a workspace."""

_METHODS = {
    TIER_1: """
        apps.connections.open apps.uninstall conversations.acceptSharedInvite
        conversations.approveSharedInvite conversations.declineSharedInvite conversations.listConnectInvites
        team.externalTeams.disconnect
    """,
    TIER_3: """
        agents.sessions.rename agents.sessions.setStatus
        assistant.threads.setSuggestedPrompts assistant.threads.setTitle auth.revoke bookmarks.list bots.info
        canvases.access.delete canvases.access.set canvases.delete canvases.edit canvases.sections.lookup
        chat.delete chat.deleteScheduledMessage chat.meMessage chat.scheduleMessage
        chat.scheduledMessages.list chat.unfurl chat.update conversations.history conversations.info
        conversations.invite conversations.join conversations.kick conversations.leave conversations.mark
        conversations.open conversations.replies dnd.info files.delete files.list files.revokePublicURL
        files.sharedPublicURL functions.completeError functions.completeSuccess reactions.add reactions.get
        slackLists.access.delete slackLists.access.set slackLists.items.create slackLists.items.update
        stars.list team.billing.info team.info team.preferences.list team.profile.get users.getPresence
        users.identity users.lookupByEmail users.profile.set
    """,
    TIER_4: """
        api.test apps.event.authorizations.list chat.appendStream chat.postEphemeral conversations.members
        dialog.open files.completeUploadExternal files.getUploadURLExternal files.info oauth.v2.access
        slackLists.download.get users.info users.profile.get views.open views.publish views.push views.update
    """,
    SPECIAL: "auth.test blocks.validate chat.getPermalink",
}
_RULES: dict[str, tuple[Rule, ...]] = {
    **{method: (rule,) for rule, methods in _METHODS.items() for method in methods.split()},
    "chat.postMessage": (CHANNEL, POSTS),
    "assistant.search.context": (Rule(10),),
    "assistant.threads.setStatus": (CHANNEL,),
}
_NON_MARKETPLACE = {"conversations.history": (TIER_1,), "conversations.replies": (TIER_1,)}


def rules_of(method: str, apps: Apps = "on") -> tuple[Rule, ...]:
    """Return the rules of a method. Methods that are not listed have Tier 2, like most of Slack's methods."""
    if apps == "non-marketplace" and method in _NON_MARKETPLACE:
        return _NON_MARKETPLACE[method]
    return _RULES.get(method, (TIER_2,))


class LeaseWanted(NamedTuple):
    """Calls that a worker wants to lease."""

    name: str
    calls: int
    window: float
    """The limit allows so many calls per so many seconds."""
    wanted: int
    """How many calls will be made as soon as they may."""
    spare: int
    keep: float
    """The worker has ``spare`` more at hand for so many seconds."""


@dataclass(frozen=True, slots=True)
class Leased:
    """The calls that a worker has leased."""

    waits: Sequence[float]
    """The seconds until each wanted call; fewer than wanted if others begin too late."""
    at_hand: int
    """How many calls may be made at any time."""
    later: float | None
    """The seconds until the first call that begins too late."""
    workers: int


class SlackLimits:
    """The SQL functions about Slack's rate limits, which all workers share: see ``021-slack-limit.sql``."""

    def __init__(self, database: Pool | Connection) -> None:
        self._database = Calls(database, cuts=True)

    async def lease_slack_calls(self, wanted: Sequence[LeaseWanted], within: float) -> list[Leased | None]:
        """Lease calls that begin ``within`` seconds; ``None`` for a limit that another transaction has locked."""
        arrays = map(list, zip(*wanted, strict=True))  # of each field
        rows = await self._database.rows("lease_slack_calls", *arrays, within)
        leased: list[Leased | None] = [None] * len(wanted)
        for row in rows:
            leased[row["ordinal"] - 1] = Leased(row["waits"], row["at_hand"], row["later"], row["workers"])
        return leased

    async def delay_slack_calls(self, name: str, calls: int, window: float, delay: float) -> bool:
        """Let no call of a limit begin for ``delay`` seconds. Return false if another transaction has it locked."""
        return bool(await self._database.call("delay_slack_calls", name, calls, window, delay))


class SlackBusyError(Exception):
    """Slack's limit leaves no turn for this call within two minutes. The event is snoozed until there is one."""

    def __init__(self, after: float) -> None:
        """``after``: seconds until the turn."""
        super().__init__(f"Slack's rate limit leaves no turn for this call within {after:.0f} s")
        self.after = after


@dataclass(frozen=True, slots=True, order=True)
class Turn:
    """The right to make one call, by the event loop's clock."""

    at: float
    until: float
    refusals: int
    """How often Slack had refused a call of this limit. A further refusal makes the turn void."""
    counts: bool = False
    """Whether ``RateLimit.counted`` already has this call."""


Caller = asyncio.Future[Turn]
"""Done when a call has its turn, or is refused one."""


class RateLimit:
    """One rule for one workspace or channel, with the callers that wait and the turns that are leased."""

    def __init__(self, name: str, rule: Rule) -> None:
        self.name = name
        self.rule = rule
        self.keep = min(rule.seconds / 2, 10.0)
        """Seconds for which spare calls are kept."""
        self.callers: deque[Caller] = deque()
        self.turns: list[Turn] = []
        self.last_at = 0.0
        """When the last leased turn begins."""
        self.counted: list[float] = []
        """The times at which this worker's own calls stop counting, in order."""
        self.unreported: list[float] = []
        """The same times of the calls that the database does not know."""
        self.refusals = 0
        self.delay_until: float | None = None
        """The time until which Slack refuses calls; ``None`` once the database knows it."""
        self.not_before = 0.0
        self.retry_at = 0.0
        self.report_at = 0.0
        self.tries = 0

    @property
    def window(self) -> float:
        """The seconds for which a call counts."""
        return self.rule.seconds + LATE + UNSTEADY

    @property
    def ask_at(self) -> float:
        """When to ask for turns. A later statement serves more callers."""
        if not self.callers:
            return max(self.retry_at, self.report_at)
        if self.delay_until is not None or len(self.callers) >= HANDFUL:
            return self.retry_at
        return max(self.retry_at, self.last_at - LEAD)

    @property
    def is_wanted(self) -> bool:
        """Whether the database must be asked or told something."""
        return bool(self.callers) or self.delay_until is not None

    def call(self, now: float) -> Caller:
        caller: Caller = asyncio.get_running_loop().create_future()
        self.turns = [turn for turn in self.turns if turn.until >= now]
        if self.turns and not self.callers:
            caller.set_result(self.turns.pop(0))
        else:
            self.callers.append(caller)
        return caller

    def leave(self, caller: Caller, now: float) -> None:
        """Leave the line. If the caller has a turn already, another one gets it."""
        caller.cancel()
        if caller.cancelled():
            with suppress(ValueError):
                self.callers.remove(caller)
        elif caller.exception() is None and not self.is_void(caller, now):
            self.give([caller.result()])

    def give(self, turns: Sequence[Turn]) -> None:
        """Give turns to the callers that wait, in order, and keep the rest."""
        for turn in turns:
            if caller := self._next():
                caller.set_result(turn)
            else:
                insort(self.turns, turn)

    def _next(self) -> Caller | None:
        while self.callers:
            caller = self.callers.popleft()
            if not caller.done():
                return caller
        return None

    def is_void(self, caller: Caller, now: float) -> bool:
        """Return whether a caller's turn is too late, or before a refusal. Raise :class:`SlackBusyError` if refused."""
        return caller.done() and (caller.result().until < now or caller.result().refusals < self.refusals)

    def use(self, turn: Turn, now: float) -> None:
        """Count a call that is made now."""
        self.counted = [end for end in self.counted if end > now]
        if not turn.counts:
            insort(self.counted, now + self.window)

    def wanted(self, now: float) -> LeaseWanted:
        self.unreported = [end for end in self.unreported if end > now]
        recent = sum(end > now + self.window - self.keep for end in self.counted)
        wanted = len(self.unreported) + len(self.callers)
        spare = min(1 + recent, HANDFUL) if self.callers else 0
        return LeaseWanted(self.name, self.rule.calls, self.window, wanted, spare, self.keep)

    def lease(self, leased: Leased, asked: LeaseWanted, sent: float, now: float) -> None:
        """Take the database's answer to the statement that was sent at ``sent``."""
        self.tries = 0
        reported, self.unreported = len(self.unreported), []
        turns = [
            Turn(now + wait, sent + wait + max(LATE, now - sent), self.refusals)
            for wait in leased.waits[reported:]
        ]
        turns += [Turn(now, sent + self.keep, self.refusals)] * leased.at_hand
        self.last_at = max([self.last_at, *(turn.at for turn in turns)])
        self.give(turns)
        if leased.later is not None and len(leased.waits) < asked.wanted:
            while caller := self._next():
                caller.set_exception(SlackBusyError(leased.later))

    def share(self, workers: int, now: float, until: float) -> None:
        """Give callers turns from this worker's share of the limit, without the database.

        The worker asks the database again at ``until``. Callers whose turn would begin later stay in line.
        """
        calls = max(1, self.rule.calls // workers)
        window = self.window * max(1.0, workers / self.rule.calls)
        self.report_at = until
        self.counted = [end for end in self.counted if end > now]
        while self.callers:
            busy = len(self.counted) - calls
            at = max(now, self.not_before, self.counted[busy] if busy >= 0 else now)
            if at > until:
                self.retry_at = until
                return
            insort(self.counted, at + window)
            self.unreported.append(at + self.window)
            self.last_at = max(self.last_at, at)
            self.give([Turn(at, at + LATE, self.refusals, counts=True)])

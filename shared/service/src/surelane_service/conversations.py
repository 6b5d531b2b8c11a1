"""What is stored of Slack's conversations: the messages of threads, people's rules for agents, and their ratings."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from surelane.calls import Calls
from surelane.codec import RESULT, Codec, Location, SealedError
from surelane.slack import inner_event

WHAT = "reason"
"""What of the click that gave it the reason for a rating is: it is sealed for that location."""
Rule = tuple[int, str, str, str]
"""The id of the event that set it, whom it is about, what it says, and who set it."""


@dataclass(slots=True)
class ThreadEvent:
    """A message of a thread, or an edit, as its ``notes`` say.

    ``turn``: a turn began with it. ``whole``: the app hears the whole channel.
    """

    id: int
    event_ts: datetime
    turn: bool
    whole: bool
    payload: Any
    notes: Any
    result: Any

    @property
    def slack(self) -> dict[str, Any]:
        return inner_event(self.payload)


class Conversations:
    """The SQL functions about threads, rules and ratings."""

    _database: Calls
    _codec: Codec
    _opened: Callable[[int, str | None, Location], Awaitable[str | None]]

    async def thread_events(self, groups: Sequence[str], *about: str) -> list[ThreadEvent]:
        """Return what is stored of a thread before a message, and the edits in its channel: ``agent.thread_events``."""
        rows = await self._database.rows("thread_events", groups, *about)
        return [await self._thread_event(*row) for row in rows]

    async def _thread_event(self, identity: int, *row: Any) -> ThreadEvent:  # noqa: ANN401 - of SQL
        *known, payload, notes, result = row
        payload = await self._codec.open(payload or "{}")
        result = await self._codec.open(result or "{}", Location(identity, RESULT))
        return ThreadEvent(identity, *known, *(json.loads(each or "{}") for each in (payload, notes, result)))

    async def live_messages(self, payload: Mapping[str, Any]) -> list[Any]:
        """Return the payloads of the live events about the message of a payload: ``agent.live_messages``."""
        text, _ = await self._codec.seal_event(json.dumps(payload), None, payload)
        rows = await self._database.rows("live_messages", text)
        return [json.loads(await self._codec.open(row["event"])) for row in rows]

    async def set_rule(self, workspace: str, rule: Rule, owner: Mapping[str, Any]) -> bool:
        """Set a rule, once. Return false where there are as many as may be. ``owner``: names the installation."""
        identity, about, text, by = rule
        said = await self._codec.seal(json.dumps({"text": text, **owner}), Location(identity, "rule"))
        return await self._database.call("set_rule", workspace, identity, about, said, by)

    async def read_rules(self, workspace: str, about: Sequence[str]) -> list[Rule]:
        """Return the rules about these ids, in their order. What cannot be decrypted is empty."""
        rules: list[Rule] = []
        for identity, of, stored, by in await self._database.rows("read_rules", workspace, about):
            try:
                said = await self._opened(identity, stored, Location(identity, "rule"))
            except SealedError:
                said = '{"text": ""}'
            rules.append((identity, of, json.loads(said or "{}")["text"], by))
        return rules

    async def drop_rule(self, workspace: str, about: str, identity: int) -> bool:
        """Remove a rule. Return false where there is none about this id."""
        return await self._database.call("drop_rule", workspace, about, identity)

    async def rate_turn(
        self, turn: int, who: tuple[str, str, str], rating: int, reason: str | None, model: str, click: int
    ) -> bool:
        """Store what the event ``click`` says of a turn: 1 (good) or -1 (bad), and why.

        ``who``: workspace, person and channel. Return false if the channel has no such turn.
        """
        stored = None if reason is None else await self._codec.seal(json.dumps(reason), Location(click, WHAT))
        return bool(await self._database.call("rate_turn", turn, *who, rating, stored, model, click))

    async def remind_feedback(self, workspace: str, person: str, times: int) -> bool:
        """Count that a person is told of ratings. Return false if that was three times before."""
        return bool(await self._database.call("remind_feedback", workspace, person, times))

"""The rules that people set in Slack for agents."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from surelane.calls import Calls
from surelane.encryption.keys import SealedError
from surelane.encryption.places import Place

WHAT = "rule"
"""What of the event that set it a rule is: it is encrypted for that place."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.

    Attributes:
        id: the id of the event that set it.
        about: the channel or the person that it is of; empty: the workspace.
        text: what it says; ``None``: it cannot be decrypted.
        set_by: the person who set it.
        set_at: when.
    """

    id: int
    about: str
    text: str | None
    set_by: str
    set_at: datetime


class Rules:
    """The SQL functions by which workers set, read and remove rules."""

    _database: Calls

    async def _sealed(self, text: str, _place: Place) -> str:
        raise NotImplementedError

    async def _opened(self, _identity: int, stored: str | None, _place: Place) -> str | None:
        raise NotImplementedError

    async def set_rule(self, identity: int, owner: str, about: str, said: Mapping[str, Any], by: str) -> bool:
        """Set a rule, once for an event. Return false where there are as many as there may be.

        Args:
            identity: the event's id.
            owner: the workspace.
            about: a channel or a person of it; empty: all of it.
            said: ``text``, and the ids by which an erasure of an organization finds it.
            by: the person who sets it.
        """
        stored = await self._sealed(json.dumps(said), Place(identity, WHAT))
        return bool(await self._database.call("set_rule", identity, owner, about, stored, by))

    async def read_rules(self, owner: str, about: Sequence[str]) -> list[Rule]:
        """Return a workspace's rules, in the order of ``about``, and then as they were set."""
        rows = await self._database.rows("read_rules", owner, about)
        return [Rule(row[0], row[1], await self._text(row[0], row[2]), *row[3:]) for row in rows]

    async def drop_rule(self, identity: int, owner: str, about: str) -> bool:
        """Remove a rule. Return false where there is none of that scope."""
        return bool(await self._database.call("drop_rule", identity, owner, about))

    async def _text(self, identity: int, stored: str) -> str | None:
        try:
            said = await self._opened(identity, stored, Place(identity, WHAT))
        except SealedError:
            return None
        return str(json.loads(said or "{}").get("text"))

"""The rules that people set in Slack for agents."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from surelane.calls import Calls
from surelane.encryption.keys import SealedError
from surelane.encryption.places import Place

Rule = tuple[int, str, str, str]
"""The id of the event that set it, whom it is about, what it says, and who set it."""


class Rules:
    """The SQL functions by which workers set, read and remove the rules of a workspace."""

    _database: Calls
    _sealed: Callable[[str, Place], Awaitable[str]]
    _opened: Callable[[int, str | None, Place], Awaitable[str | None]]

    async def set_rule(self, workspace: str, rule: Rule, owner: Mapping[str, Any]) -> bool:
        """Set a rule, once. Return false where there are as many as may be. ``owner``: names the installation."""
        identity, about, text, by = rule
        said = await self._sealed(json.dumps({"text": text, **owner}), Place(identity, "rule"))
        return await self._database.call("set_rule", workspace, identity, about, said, by)

    async def read_rules(self, workspace: str, about: Sequence[str]) -> list[Rule]:
        """Return the rules about these ids, in their order. What cannot be decrypted is empty."""
        rules: list[Rule] = []
        for identity, of, stored, by in await self._database.rows("read_rules", workspace, about):
            try:
                said = await self._opened(identity, stored, Place(identity, "rule"))
            except SealedError:
                said = '{"text": ""}'
            rules.append((identity, of, json.loads(said or "{}")["text"], by))
        return rules

    async def drop_rule(self, workspace: str, about: str, identity: int) -> bool:
        """Remove a rule. Return false where there is none about this id."""
        return await self._database.call("drop_rule", workspace, about, identity)

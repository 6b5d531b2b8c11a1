"""What people think of an agent's answers, as workers store it."""

import json
from abc import abstractmethod

from surelane.calls import Calls
from surelane.encryption.places import Place

WHAT = "reason"
"""What of the click that gave it a reason is: it is encrypted for that place."""


class Feedback:
    """The SQL functions of feedback."""

    _database: Calls

    @abstractmethod
    async def _sealed(self, text: str, _place: Place) -> str:
        """Return a text as it is stored: encrypted where encryption is on."""

    async def rate_turn(
        self, turn: int, who: tuple[str, str, str], rating: int, reason: str | None, model: str, click: int
    ) -> bool:
        """Store what the event ``click`` says of a turn: 1 (good) or -1 (bad), and why.

        ``who``: workspace, person and channel. Return false if the channel has no such turn.
        """
        stored = None if reason is None else await self._sealed(json.dumps(reason), Place(click, WHAT))
        return bool(await self._database.call("rate_turn", turn, *who, rating, stored, model, click))

    async def remind_feedback(self, workspace: str, person: str, times: int) -> bool:
        """Count that a person is told of ratings. Return false if that was three times before."""
        return bool(await self._database.call("remind_feedback", workspace, person, times))

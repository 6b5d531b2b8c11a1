"""What people think of an agent's answers."""

import json
from dataclasses import dataclass

from surelane.calls import Calls
from surelane.encryption.places import Place

WHAT = "reason"
"""What of the click that gave it a reason is: it is encrypted for that place."""
GOOD, BAD = 1, -1


@dataclass(frozen=True, slots=True)
class Rated:
    """What a person thinks of a turn.

    Attributes:
        turn: the id of the turn's event.
        click: the id of the event that says it. The later one counts.
        workspace: the person's; empty without one.
        person: the person's id.
        channel: where the turn was answered.
        rating: :data:`GOOD` or :data:`BAD`.
        reason: why, in the person's words.
        model: the model of the turn's last response; empty: not known.
    """

    turn: int
    click: int
    workspace: str
    person: str
    channel: str
    rating: int
    reason: str | None = None
    model: str = ""


class Feedback:
    """The SQL functions by which workers store feedback."""

    _database: Calls

    async def _sealed(self, text: str, _place: Place) -> str:
        raise NotImplementedError

    async def rate_turn(self, rated: Rated) -> bool:
        """Store what a person thinks of a turn. Return false where the channel has no such turn any more."""
        reason = None
        if rated.reason is not None:
            reason = await self._sealed(json.dumps(rated.reason), Place(rated.click, WHAT))
        place = rated.turn, rated.workspace, rated.person, rated.channel
        return bool(
            await self._database.call("rate_turn", *place, rated.rating, reason, rated.model, rated.click)
        )

    async def remind_feedback(self, workspace: str, person: str, times: int) -> bool:
        """Count that a person is told of ratings. Return false if they were told three times, or want no more."""
        return bool(await self._database.call("remind_feedback", workspace, person, times))

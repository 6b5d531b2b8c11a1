"""Coalescing: one run of a handler gets the events of a thread that came in quick succession.

The first of them, the head, stands for the run: its claim fences it, its steps and notes are kept with it, and it alone
fails or is suspended. The others, its followers, end with it. A run that does not end leaves them in the queue.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from surelane.events import Event
from surelane_service.engine import MOST_MEMBERS
from surelane_service.logs import get_logger
from surelane_worker.handling.attempt import Services, Stoppable
from surelane_worker.handling.bounds import Debounce
from surelane_worker.handling.fence import Fence
from surelane_worker.handling.outcomes import Held
from surelane_worker.leasing import Claim
from surelane_worker.settling import Settler
from surelane_worker.slack.notes import ClaimLostError

ALONE = "alone"
"""Answers that a claim follows a lapsed one: its head came without the events behind it."""

log = get_logger("surelane_worker.running.coalescing")


@dataclass(frozen=True, slots=True)
class Coalesced:
    """What one run handles: the claims of the head and its followers, and all events in order.

    Followers that ended when an earlier run was suspended have no claim.
    """

    claims: list[Claim]
    events: list[Event]


@dataclass(frozen=True, slots=True)
class Coalescer:
    """Decides what the next run of a handler with ``debounce`` gets, and when it begins."""

    services: Services
    settler: Settler

    async def gather(
        self, work: Stoppable, claims: Sequence[Claim], debounce: Debounce, *, closed: bool
    ) -> Coalesced | None:
        """Return the run of the events that were claimed together; ``None``: it begins later.

        Until ``debounce`` has passed without an event, the head is put off, and its group waits behind it. The caller
        releases the other claims. ``closed``: an event of another handler follows, so the run can get no more.
        """
        head = next((claim for claim in claims if claim.event.prior_vt is not None), claims[0])
        others = [claim for claim in claims if claim is not head]
        if head.event.group_key is None:  # nothing can follow it
            return Coalesced([head], [head.event])
        events = [claim.event for claim in claims]
        if not closed and len(others) < MOST_MEMBERS:
            pause = debounce.wait(events, head.event.vt - self.services.settings.lease)
            if pause:
                self._put_back(head, pause)
                return None
        engine, event = self.services.engine, head.event
        fence = Fence(engine, event, log, partial(self.services.check_claim, work))
        try:
            answer, followers = await fence.send(engine.gather, [claim.event.id for claim in others])
        except ClaimLostError:
            return None
        if answer == ALONE:
            self._put_back(head, 0.0)
            return None
        others = [claim for claim in others if claim.event.id in followers]
        events = [event, *(claim.event for claim in others)]
        if len(others) < len(followers):
            events += await fence.patiently(engine.ended_followers, event.id)
        # An event that runs another one again happened after the events that it gets. It is the first of them.
        reruns = event.notes is not None and "replay_of" in json.loads(event.notes)
        events.sort(key=lambda each: (reruns and each is not event, each.event_ts, each.id))
        return Coalesced([head, *others], events)

    def _put_back(self, head: Claim, pause: float) -> None:
        held = Held(pause, begun=False)
        self.settler.put(head, held, held.argument())

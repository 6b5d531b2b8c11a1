"""The two sides of a worker: ordinary events, and those for which a person waits. Each has slots of its own."""

from dataclasses import dataclass

from surelane_worker.claiming.wakeup import Wakeup
from surelane_worker.running.slots import Slots


@dataclass(frozen=True, slots=True)
class Side:
    """Slots for one sort of events, and what wakes the claimer that fills them.

    The first side of a worker takes the ordinary events, and the second one the commands and interactions. A worker
    that handles one sort alone has one side.
    """

    wakeup: Wakeup
    slots: Slots

    def wake(self) -> None:
        """Claim because of a notification. If no slot is free, the event may come before those that wait for one."""
        self.slots.let_overtake()
        self.wakeup.wake()

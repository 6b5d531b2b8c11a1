"""Report handled events to the benchmark, as lines of JSON on standard output.

A line per thousand events keeps the cost of reporting low. All processes of a machine share the clock,
CLOCK_MONOTONIC.
"""

import json
import time

from benchmarks.programs.instructions import Counter

EVERY = 1000
MARK = '{"bench"'


class Tally:
    """A counter of events in the process that handles them."""

    def __init__(self) -> None:
        self.count = 0
        """The number of handled events."""

        self._instructions: Counter | None = None

    def add(self) -> None:
        """Count one event. Report the first and every thousandth."""
        if self._instructions is None:  # in the thread that handles the events
            self._instructions = Counter()
            self._tell(self._instructions)
        self.count += 1
        if self.count % EVERY == 0:
            self._tell(self._instructions)

    def _tell(self, instructions: Counter) -> None:
        moment = {
            "bench": "count",
            "count": self.count,
            "at": time.monotonic(),
            "cpu": time.process_time(),
            "instructions": instructions.read(),
        }
        print(json.dumps(moment), flush=True)


def started(number: int) -> None:
    """Report that the handler of a numbered event starts."""
    print(json.dumps({"bench": "started", "number": number, "at": time.monotonic()}), flush=True)


def ended() -> None:
    """Report that a handler ends, and frees its slot."""
    print(json.dumps({"bench": "ended", "at": time.monotonic()}), flush=True)

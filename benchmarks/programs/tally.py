"""Report handled events to the benchmark: lines of JSON on standard output.

Printed once every thousand events, so that the telling does not weigh on what is measured. The clock is
CLOCK_MONOTONIC, which is one for all processes of a machine.
"""

import json
import time

EVERY = 1000
MARK = '{"bench"'


class Tally:
    """Counts events in the process that handles them."""

    def __init__(self) -> None:
        self.count = 0
        """Events handled."""

    def add(self) -> None:
        """Count one event; report the first and every thousandth."""
        if self.count == 0:
            self._tell()
        self.count += 1
        if self.count % EVERY == 0:
            self._tell()

    def _tell(self) -> None:
        moment = {"bench": "count", "count": self.count, "at": time.monotonic(), "cpu": time.process_time()}
        print(json.dumps(moment), flush=True)


def started(number: int) -> None:
    """Report that the handler of a numbered event starts."""
    print(json.dumps({"bench": "started", "number": number, "at": time.monotonic()}), flush=True)

"""How a process that handles events tells the benchmark about it: lines of JSON on standard output.

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
        """Counts one event; tells at the first and at every thousandth."""
        if self.count == 0:
            self._tell()
        self.count += 1
        if self.count % EVERY == 0:
            self._tell()

    def _tell(self) -> None:
        moment = {"bench": "count", "count": self.count, "at": time.monotonic(), "cpu": time.process_time()}
        print(json.dumps(moment), flush=True)


def started(number: int) -> None:
    """Tells that the handler of a numbered event starts."""
    print(json.dumps({"bench": "started", "number": number, "at": time.monotonic()}), flush=True)

"""Show every process's lines on the terminal under its name, with readable log records."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import structlog

COLOURS = {"postgres": 34, "migrate": 35, "simulator": 36, "ingest": 32, "worker": 33}
WIDTH = max(map(len, COLOURS))
QUIET = 1.5
"""Seconds after which a start says again what it does."""


class Output:
    """Write to standard output, in colour if it is a terminal."""

    def __init__(self, *, colours: bool | None = None) -> None:
        wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._colours = wanted if colours is None else colours
        self._doing, self._since, self._said = "", 0.0, 0.0
        self._render = structlog.dev.ConsoleRenderer(colors=self._colours, pad_event_to=0, sort_keys=False)

    def of(self, name: str) -> Callable[[str], None]:
        """Return a function that shows lines of the process ``name``: a record under its service's name."""

        def show(line: str) -> None:
            record = _record(line)
            service = str(record.get("service", name)).removeprefix("surelane-") if record else name
            prefix = service.ljust(WIDTH)
            if self._colours:
                prefix = f"\x1b[{COLOURS.get(service, 37)}m{prefix}\x1b[0m"
            self.say(*(f"{prefix}  {part}" for part in self.readable(line).splitlines()))

        return show

    def doing(self, what: str) -> None:
        """Say what goes on. :meth:`never_silent` says it again while nothing else is said."""
        self._doing, self._since = what, time.monotonic()
        self.say(what)

    async def never_silent(self) -> None:
        """Until this is cancelled, say what goes on, and for how long, where nothing is said for ``QUIET`` seconds."""
        while True:
            await asyncio.sleep(QUIET / 5)
            now = time.monotonic()
            if now - self._said > QUIET:
                self.say(f"{self._doing} ({now - self._since:.0f} s)")

    def say(self, *lines: str) -> None:
        """Write lines. Ignore a terminal that went away, so that the caller can still clean up."""
        self._said = time.monotonic()
        try:
            print(*lines, sep="\n", flush=True)
        except OSError:
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a descriptor is what is wanted
                os.dup2(nowhere.fileno(), sys.stdout.fileno())

    def readable(self, line: str) -> str:
        """Format a JSON record of structlog as one line and its traceback. Return any other line unchanged."""
        record = _record(line)
        if record is None:
            return line
        record.pop("service", None)  # the line's prefix names it already
        if "timestamp" in record:
            record["timestamp"] = _clock(str(record["timestamp"]))
        if isinstance(record.get("exception"), list):
            record["exception"] = "\n".join(_traceback(record["exception"]))
        return str(self._render(None, "", record))


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "event" in record else None


def _clock(timestamp: str) -> str:
    try:
        return datetime.fromisoformat(timestamp).astimezone().strftime("%H:%M:%S.%f")[:-3]
    except ValueError:
        return timestamp


def _traceback(errors: Iterable[Mapping[str, Any]]) -> list[str]:
    """Format a traceback as Python does, with the cause first. structlog's dictionaries begin with the last error."""
    lines: list[str] = []
    for error in reversed(list(errors)):
        if lines:
            lines.append("which led to")
        lines.append("Traceback (most recent call last):")
        lines.extend(
            f'  File "{frame.get("filename")}", line {frame.get("lineno")}, in {frame.get("name")}'
            for frame in error.get("frames", ())
        )
        said = error.get("exc_value")
        lines.append(f"{error.get('exc_type')}: {said}" if said else str(error.get("exc_type")))
        lines.extend(error.get("exc_notes", ()))
        for nested in error.get("exceptions", ()):
            lines.extend(f"  | {line}" for line in _traceback(nested))
    return lines

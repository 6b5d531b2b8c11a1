"""Tell what happened to one event, line by line, as far as it was not told before."""

from collections.abc import Iterator
from datetime import date
from typing import Any

from rich.text import Text

from surelane_operator.cli.output import colour_of, console, end, middle, one_line
from surelane_operator.cli.times import ago, clock, short_clock
from surelane_operator.timeline import Step, story_of, trace_of

_WHAT = 11
_BY = 24
_INDENT = " " * 14


class Story:
    """The story of one event on a terminal."""

    def __init__(self) -> None:
        self._screen = console()
        self._told: set[Step] = set()
        self._day: date | None = None

    def begin(self, job: dict[str, Any]) -> None:
        """Say which event it is."""
        self._screen.print(f"event {job['id']}  {job['kind']}  {job['status']}")
        self._screen.print(f"trace {trace_of(job)}  enqueued {ago(job['enqueued_at'])}")

    def tell(self, job: dict[str, Any]) -> None:
        """Print the steps that were not printed yet."""
        for step in story_of(job):
            if step not in self._told:
                self._told.add(step)
                for line in self._lines(step):
                    self._screen.print(line)

    def _lines(self, step: Step) -> Iterator[Text]:
        moment = step.at.astimezone()
        if moment.date() != self._day:
            self._day = moment.date()
            yield Text(f"{clock(moment)[:10]} {moment:%Z}", "bold")
        by = middle(step.by or "", _BY)
        said = Text(f"{short_clock(moment)}  ", end="")
        said.append(step.what.ljust(_WHAT), colour_of(step.what))
        said.append(f"  {by}" if by else "")
        detail = one_line(step.detail or "")
        if detail and said.cell_len + 2 + len(detail) <= self._screen.width:
            yield said.append(f"  {detail}")
            return
        said.rstrip()
        yield said
        if detail:
            yield Text(_INDENT + end(detail, self._screen.width - len(_INDENT)))

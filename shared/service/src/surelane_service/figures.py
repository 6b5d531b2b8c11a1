"""The queue's figures for operators. The database measures them once for all callers."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Any

from surelane.calls import Calls
from surelane.errors import NotMeasured

MOST_KINDS = 100
OTHER = "other"


@dataclass(frozen=True, slots=True)
class KindFigures:
    """One kind's events. A group counts once, by its head. ``oldest_pending_age``: its seconds visible, or 0."""

    kind: str
    paused: bool
    pending: int
    scheduled: int
    running: int
    oldest_pending_age: float


@dataclass(frozen=True, slots=True)
class Holder:
    """The ``session``, ``prepared`` transaction or ``slot`` that has held back vacuum the longest.

    Attributes:
        application: the session's ``application_name``, or the name of the prepared transaction or slot.
        state: the session's; ``hidden`` where the schema's owner may not see it.
        since: seconds since 1970; for a hidden session, when it was first seen.
        age: seconds, as of the measurement.
    """

    holder: str
    pid: int | None
    application: str
    state: str
    since: float
    age: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures, as they were last measured.

    Attributes:
        group_waiting: events behind the head of their group, up to 100,000.
        dead_rows: of the live queue, waiting to be vacuumed.
        age: seconds since they were measured.
        fresh: whether this call measured them.
        clock_offset: this process's clock less the database's.
    """

    kinds: Sequence[KindFigures]
    group_waiting: int
    workers: int
    dead_rows: int
    holder: Holder | None
    age: float
    fresh: bool
    clock_offset: timedelta


class Measured:
    """The call that all services' clients share: to read the figures."""

    calls: Calls

    async def figures(self) -> Figures:
        """Return the figures; the database measures them again when they are due. ``NotMeasured``: not once yet."""
        sent = time.time()
        text = await self.calls.call("measure_queue")
        if text is None:
            raise NotMeasured
        return read_figures(text, sent, time.time())


def bounded(kinds: Sequence[KindFigures], most: int = MOST_KINDS) -> list[KindFigures]:
    """Return the ``most`` largest kinds. The last one, ``other``, sums up all further kinds.

    The database has summed up all beyond 500 under the same name.
    """
    if len(kinds) <= most:
        return list(kinds)
    ordered = sorted(
        kinds, key=lambda each: (each.kind == OTHER, -each.pending - each.scheduled - each.running)
    )
    kept, rest = ordered[: most - 1], ordered[most - 1 :]
    pending, scheduled, running = (
        sum(map(attrgetter(state), rest)) for state in ("pending", "scheduled", "running")
    )
    oldest = max(each.oldest_pending_age for each in rest)
    return [*kept, KindFigures(OTHER, False, pending, scheduled, running, oldest)]


def read_figures(text: str, sent: float, received: float, began: float | None = None) -> Figures:
    """Read the answer of ``agent.measure_queue``, JSON text.

    Args:
        sent, received: when the statement was sent and its answer came, by this process's clock.
        began: when the statement began, by the database's clock, where it did more than measure.
    """
    values = json.loads(text)
    # As in NTP: assume that the way there takes as long as the way back.
    offset = ((sent - (began or values["began"])) + (received - values["ended"])) / 2
    return Figures(
        kinds=[KindFigures(**kind) for kind in values["kinds"]],
        holder=_holder(values["holder"], values["measured_at"]),
        age=values["ended"] - values["measured_at"],
        clock_offset=timedelta(seconds=offset),
        **{name: values[name] for name in ("group_waiting", "workers", "dead_rows", "fresh")},
    )


def _holder(values: dict[str, Any] | None, measured_at: float) -> Holder | None:
    if values is None:
        return None
    since = values["since"]
    state, application = values["state"] or "hidden", values["application"] or ""
    return Holder(values["holder"], values["pid"], application, state, since, max(measured_at - since, 0.0))

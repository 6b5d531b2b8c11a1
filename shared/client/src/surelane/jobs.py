"""Jobs and workflows as values, and as the JSON texts that SQL functions take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from opentelemetry import trace

from surelane.json_text import json_text
from surelane.trace_context import traceparent_of

OnDuplicate = Literal["skip", "replace", "earliest"]
"""What happens to a pending job when another comes under its dedupe key.

``skip`` keeps it as it is. ``replace`` gives it the new payload and time. ``earliest`` gives it the earlier time.
"""

Priority = Literal[0, 1, 2, 3]
"""What is claimed first: 0 before 1, 1 before 2, 2 before 3. Every priority gets a share of the claims."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job to be enqueued.

    Attributes:
        kind: the kind; a worker that handles this kind runs the job.
        payload: any JSON value, pydantic model or dataclass; the handler's ``event.payload`` when it is an object.
        dedupe_key: while a job under this key was never claimed, another one is not added.
        run_at: the earliest time to run; now where ``None``.
        max_attempts: attempts in total; the worker's setting where ``None``.
        group_key: its group: one worker at a time handles the jobs of a group.
        item_key: its natural key, to find, cancel and reschedule it; unique among live events.
        enqueued_by: who enqueued it, as people will read it; the database role where ``None``.
        deadline: the job expires when it has not begun by then.
        priority: 0 runs first, 3 last. Within a group it does not change the order.
        limit_key: its key where the limit of its kind is per key of a function.
    """

    kind: str
    payload: Any = field(default_factory=dict)
    dedupe_key: str | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None
    group_key: str | None = None
    item_key: str | None = None
    enqueued_by: str | None = None
    deadline: datetime | None = None
    priority: Priority = 1
    limit_key: str | None = None


@dataclass(frozen=True, slots=True)
class Continuation(Job):
    """The job that runs once, when every child has ended.

    Attributes:
        fails_with_children: the continuation fails, without running, with the first child that does not complete.
            Otherwise it runs and reads each child's outcome, failures included.
    """

    fails_with_children: bool = False


@dataclass(frozen=True, slots=True)
class Unopened:
    """Stands for a value of a child that cannot be opened."""

    why: Exception


@dataclass(frozen=True, slots=True)
class Child:
    """A child of a continuation. ``status`` is its outcome once it has ended.

    To read a ``payload`` or a ``result`` that cannot be opened raises why.
    """

    id: int
    kind: str
    item_key: str | None
    payload: Any = field(repr=False)
    status: str
    result: Any = field(repr=False)
    reason: str | None
    error: str | None

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - any field
        value = object.__getattribute__(self, name)
        if isinstance(value, Unopened):
            raise value.why
        return value


def job_text(job: Job) -> str:
    """Write a job as JSON text, with the current span as the one that enqueues it. It raises as :func:`json_text`."""
    return json_text(_fields(job, _traceparent()))


def jobs_text(jobs: Sequence[Job]) -> str:
    """Write jobs as the JSON text of an array. See :func:`job_text`."""
    traceparent = _traceparent()
    return json_text([_fields(job, traceparent) for job in jobs])


def _fields(job: Job, traceparent: str | None) -> Mapping[str, Any]:
    """Return the fields that have a value. The names of the others would take as long as those."""
    given = {name: value for name in job.__dataclass_fields__ if (value := getattr(job, name)) is not None}
    return given if traceparent is None else {**given, "traceparent": traceparent}


def _traceparent() -> str | None:
    return traceparent_of(trace.get_current_span())

"""Tell where the events of a test are: what `surelane events why` says, and the traceback of a handler that failed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surelane.calls import Connection

_ALL = """
select e.id, e.kind, e.item_key as key, e.attempts, w.reason as state, w.detail, e.errors,
    null as result, e.event as payload
from agent.event as e, lateral agent.why_waiting(e.id) as w
union all
select h.id, h.kind, h.item_key, h.attempts, h.outcome, h.reason, h.errors, h.result, h.event
from agent.event_hist as h
order by id
"""


@dataclass(frozen=True)
class Story:
    """An event, and where it is now."""

    id: int
    kind: str
    key: str | None
    attempts: int
    state: str
    """The outcome if it ended, such as ``completed`` or ``failed``. Otherwise the reason why it waits."""
    detail: str | None
    errors: list[dict[str, Any]]
    result: Any
    payload: Any
    traceback: str | None = None
    """Of the last attempt that failed in this test."""

    def __str__(self) -> str:
        unhandled = self.result.get("unhandled") if isinstance(self.result, dict) else None
        detail = f": {why}" if (why := self.detail or unhandled) else ""
        attempts = f"{self.attempts} attempt{'' if self.attempts == 1 else 's'}"
        lines = [f"event {self.id}, {self.kind}, after {attempts}, is {self.state}{detail}"]
        if self.traceback:
            lines += [f"  {line}" for line in self.traceback.splitlines()]
        elif self.errors:
            last = self.errors[-1]
            lines.append(f"  {last['type']}: {last['message']} ({last.get('where', 'no line is known')})")
        return "\n".join(lines)


async def stories(connection: Connection, tracebacks: Mapping[int, str]) -> list[Story]:
    """Return all events of a database, in the order in which they were stored."""
    found = []
    for row in await connection.fetch(_ALL):
        read = {name: _read(row[name]) for name in ("errors", "result", "payload")}
        given = {**dict(row), **read, "errors": read["errors"] or []}
        found.append(Story(**given, traceback=tracebacks.get(row["id"])))
    return found


def _read(text: str | None) -> Any:  # noqa: ANN401 - any JSON value
    return None if text is None else json.loads(text)

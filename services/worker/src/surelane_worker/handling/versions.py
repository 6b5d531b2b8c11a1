"""Versions of handlers: a run stays with the version that it began under.

The version is noted on the event before the first step or wait is stored. Version 1 is not: an event with steps and
without a note has it. A worker without the version gives the event the kind ``KIND@VERSION``, which workers with that
version claim (``agent.pass_to_version``).
"""

import json
import re

from surelane.events import Event

FIRST = "1"
"""The version of a handler that names none, and of runs of releases that knew no versions."""
LONGEST = 20
_VERSION = re.compile(r"(0|[1-9]\d*)(\.(0|[1-9]\d*))*", re.ASCII)


def checked(version: str, kinds: tuple[str, ...]) -> None:
    """Refuse a version that is not made of numbers, and kinds that have no room for it."""
    if len(version) > LONGEST or not _VERSION.fullmatch(version):
        raise ValueError(f"version is a text of numbers, such as '2' or '2.1', not {version!r}")
    if long := [kind for kind in kinds if len(kind) >= 200 - LONGEST]:
        raise ValueError(f"a kind with a version has fewer than {200 - LONGEST} characters: {long[0]!r}")


def numbers(version: str | None) -> list[int]:
    """Return the numbers of a version: the version with the greater ones takes new events."""
    return [int(part) for part in (version or FIRST).split(".")]


def of_kind(kind: str, version: str) -> str:
    """Return the kind of events that wait for a version."""
    return f"{kind}@{version}"


def noted(event: Event) -> str | None:
    """Return the version that is noted on an event."""
    if event.notes is None or '"version"' not in event.notes:
        return None
    found: str | None = json.loads(event.notes).get("version")
    return found


def name_plainly(event: Event) -> None:
    """Give an event that waited for a version its own kind: handlers, logs and metrics know no other."""
    if version := noted(event):
        event.kind = event.kind.removesuffix(of_kind("", version))

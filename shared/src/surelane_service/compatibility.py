"""Decide whether a database's schema serves services of this version."""

import re

from surelane import __version__
from surelane.calls import Calls


async def schema_version(calls: Calls) -> tuple[str, str]:
    """Return the schema's version and the oldest version of the services that it serves."""
    row = await calls.fetchrow("select version, min_compatible from agent.schema_version()")
    if row is None:
        raise LookupError("agent.version holds no row")
    return row["version"], row["min_compatible"]


def unfit(version: str, min_compatible: str, ours: str = __version__) -> str | None:
    """Return why a schema of ``version`` does not serve services of version ``ours``; ``None`` where it does.

    A newer schema does, so that old replicas can restart during a rollout, until its ``min_compatible`` excludes them.
    """
    if _release(version) < _release(ours):
        return (
            f"the schema is of version {version}, older than {ours}: run python -m surelane_migrations apply"
        )
    if _release(min_compatible) > _release(ours):
        return f"the schema serves version {min_compatible} and newer, not {ours}"
    return None


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version, re.ASCII)
    return tuple(int(part) for part in match[0].split(".")) if match else ()

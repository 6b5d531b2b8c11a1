"""Decide whether a database's schema serves services of this version."""

import asyncio
import re
from collections.abc import Awaitable
from math import inf

from surelane import __version__
from surelane.calls import Calls
from surelane.errors import DatabaseUnavailable, told

BUDGET = 2.0
"""Seconds that the database has to answer a probe."""


async def schema_version(calls: Calls) -> tuple[str, str]:
    """Return the schema's version and the oldest version of the services that it serves."""
    row = await calls.fetchrow("select version, min_compatible from agent.schema_version()")
    if row is None:
        raise LookupError("agent.version holds no row")
    return row["version"], row["min_compatible"]


async def schema_unfit(versions: Awaitable[tuple[str, str]], within: float = BUDGET) -> str | None:
    """Return why this version cannot work with the database; ``None`` where it can. It has ``within`` seconds."""
    try:
        async with asyncio.timeout(within):
            version, min_compatible = await versions
    except (DatabaseUnavailable, TimeoutError) as error:
        return f"the database is unavailable: {told(error)}"
    except Exception as error:  # noqa: BLE001 - a probe answers, however the schema is broken
        return f"the schema cannot be used: {told(error)}"
    return unfit(version, min_compatible)


def unfit(version: str, min_compatible: str, ours: str = __version__) -> str | None:
    """Return why a schema of ``version`` does not serve services of version ``ours``; ``None`` where it does.

    A newer schema does, so that old replicas can restart during a rollout, until its ``min_compatible`` excludes them.
    """
    if _release(version) < _release(ours):
        return f"the schema is of version {version}, older than {ours}: run the migrations"
    if _release(min_compatible) > _release(ours):
        return f"the schema serves version {min_compatible} and newer, not {ours}"
    return None


def _release(version: str) -> tuple[float, ...]:
    """Return what orders versions: a candidate's number comes last, as in ``1.0.0rc1``, and the release after all."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?", version, re.ASCII)
    return tuple(inf if part is None else int(part) for part in match.groups()) if match else ()

"""Several installations, each for some workspaces: where each is, and how it does. See docs/scaling.md."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from surelane.errors import SurelaneError
from surelane_operator.changes import Changes
from surelane_operator.doctor.server import connected

SETTING = "SURELANE_SHARDS"
PATIENCE = 5.0
"""Seconds for the answers of one installation."""


def known(text: str | None = None) -> dict[str, str]:
    """Return the URIs of ``SURELANE_SHARDS`` by name. It holds NAME=URI, separated by spaces."""
    given = os.environ.get(SETTING, "") if text is None else text
    return dict(part.partition("=")[::2] for part in given.split())


async def read_shards(shards: Mapping[str, str]) -> list[dict[str, Any]]:
    """Ask all installations at once: what waits and runs in each, and how many workers live. Or why one is ``away``."""
    return await asyncio.gather(*(_read(name, uri) for name, uri in shards.items()))


async def _read(name: str, uri: str) -> dict[str, Any]:
    try:
        async with asyncio.timeout(PATIENCE), connected(uri) as connection:
            changes = Changes(connection)
            kinds, workers = await changes.stats(), await changes.workers()
    except (SurelaneError, TimeoutError, ValueError) as error:
        return {"name": name, "away": str(error) or f"it did not answer within {PATIENCE:g} s"}
    counts = {state: sum(kind[state] for kind in kinds) for state in ("pending", "running", "scheduled")}
    oldest = min((kind["oldest_pending"] for kind in kinds if kind["oldest_pending"]), default=None)
    return {
        "name": name,
        "away": None,
        "oldest": oldest,
        "workers": sum(each["alive"] for each in workers),
        **counts,
    }

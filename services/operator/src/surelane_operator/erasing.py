"""Erase what a person wrote, or what was written in a channel or a workspace: preview, steps, receipt."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from surelane.calls import Calls, Connection, Pool
from surelane.errors import Conflict

PAUSE = 0.5
"""Seconds between looks at events that have not ended yet, or that another transaction has locked."""

Told = Callable[["Progress"], None]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a preview or an erasure has come: it has ``seen`` events ``of`` about so many.

    ``waiting`` events have not ended yet, or another transaction has locked them. With ``key_in_use`` it waits until
    no process encrypts with the workspace's data key.
    """

    seen: int
    of: int
    waiting: int = 0
    key_in_use: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an erasure did.

    Attributes:
        filter: the ids of the filter, hashed with ``key``.
        counts: the removed rows by table. ``cancelled``: live events that were cancelled before. ``data_key``: data
            keys that were destroyed.
        key: the key of the hashes, which the database has forgotten; ``None`` in a list.
    """

    id: int
    asked_at: datetime
    asked_by: str
    filter: Mapping[str, str]
    counts: Mapping[str, int]
    finished_at: datetime | None
    key: str | None = None


class Erasing:
    """The operator's calls that erase, on connections of the role ``agent_operator``."""

    def __init__(self, database: Pool | Connection) -> None:
        self._database = Calls(database)

    async def preview(self, names: Mapping[str, str | None], told: Told = lambda _: None) -> dict[str, int]:
        """Count by table what an erasure would remove. It changes nothing.

        Args:
            names: ``user``, ``team`` and ``channel``; a removed event has all given ones.
            told: gets the progress after each step.

        Raises:
            InvalidInput: none is given, or one is not an id.
        """
        counts, at, seen, of = Counter[str](), None, 0, 0
        while True:
            given = json.dumps(names), at and json.dumps(at)
            step = json.loads(await self._database.call("preview_erasure", *given))
            counts.update(step["counts"])
            seen, of, at = seen + step["seen"], step.get("of", of), step.get("at")
            told(Progress(seen, of))
            if at is None:
                return dict(counts)

    async def erase(
        self, names: Mapping[str, str | None], by: str | None = None, told: Told = lambda _: None
    ) -> Receipt:
        """Erase in bounded steps. An erasure of the same names that was interrupted goes on where it stopped.

        It waits until running events have ended. It does not cover events that come after its beginning. The data key
        of a whole workspace is destroyed. That takes more than a minute, for which processes keep the key.

        ``names`` and ``told`` are those of :meth:`preview`. ``by`` is who asked for it, by default the database's role.

        Raises:
            InvalidInput: no name is given, or one is not an id.
        """
        given = json.dumps(names)
        begun = await self._database.row("begin_erasure", given, by)
        assert begun is not None  # noqa: S101 - one row, always
        seen, place = 0, ""
        while place != "done":
            step = await self._step(begun["id"], given)
            if step is None:
                waiting = 1
            else:
                place, waiting, seen = step["place"], step["waiting"], seen + step["seen"]
            told(Progress(seen, begun["about"], waiting, place == "key"))
            if waiting:
                await asyncio.sleep(PAUSE)
        (receipt,) = [each for each in await self.receipts() if each.id == begun["id"]]
        return replace(receipt, key=begun["key"])

    async def _step(self, identity: int, given: str) -> Any:  # noqa: ANN401 - a row of the driver
        """Do one step; return nothing if another transaction kept it waiting."""
        try:
            return await self._database.row("erase_step", identity, given)
        except Conflict:
            return None

    async def receipts(self) -> list[Receipt]:
        """Return the receipts of the last hundred erasures, newest first."""
        return [
            Receipt(**{**row, "filter": json.loads(row["filter"]), "counts": json.loads(row["counts"])})
            for row in await self._database.rows("list_erasures")
        ]

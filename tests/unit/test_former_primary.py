"""After a failover nothing uses the server that was the primary before."""

from collections.abc import Iterator
from unittest.mock import AsyncMock

import pytest

from surelane_service import pool
from surelane_service.pool import FormerPrimary, refuse_former_primary


class Timelines(dict[str, int]):
    """A row: asyncpg's are unpacked into their values."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.values())  # type: ignore[arg-type]


def server(timeline: int, newest: int) -> AsyncMock:
    """Return a connection to a server on a timeline, which a worker told of the newest one."""
    row = Timelines(system=7, timeline=timeline, newest=newest)
    return AsyncMock(fetchrow=AsyncMock(return_value=row))


async def test_a_server_is_refused_if_anybody_saw_a_newer_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_seen", (0, 0))
    with pytest.raises(FormerPrimary):
        await refuse_former_primary(server(1, newest=2))
    await refuse_former_primary(server(2, newest=2))
    former = server(1, newest=1)
    with pytest.raises(FormerPrimary):
        await refuse_former_primary(former)
    former.execute.assert_awaited_once_with("select agent.note_timeline($1, $2)", 7, 2)

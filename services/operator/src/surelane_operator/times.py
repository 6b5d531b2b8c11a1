"""Times of a database beyond Python's first and last year: shown as these, so that no row hides the others."""

from datetime import UTC, datetime, timedelta

from surelane.calls import Connection

EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
LATEST = datetime(9999, 12, 30, tzinfo=UTC)
"""A day from Python's own ends: in every time zone they are times, too."""
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


async def read_any_time(connection: Connection) -> None:
    """Let a connection read every time. The driver raises ``OverflowError`` beyond Python's, for all rows."""
    await connection.set_type_codec(
        "timestamptz", schema="pg_catalog", encoder=_encoded, decoder=_decoded, format="tuple"
    )


def _encoded(moment: datetime) -> tuple[int]:
    return ((moment.astimezone(UTC) - _FIRST) // _TICK,)


def _decoded(ticks: tuple[int]) -> datetime:
    try:
        return min(max(_FIRST + timedelta(microseconds=ticks[0]), EARLIEST), LATEST)
    except OverflowError:
        return LATEST if ticks[0] > 0 else EARLIEST

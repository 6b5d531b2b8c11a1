"""How the queue went in the last hour or day, from a bounded look at history and the measured depths."""

import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from surelane.calls import Calls, Row

SPANS: Final = {"hour": (timedelta(minutes=1), 60), "day": (timedelta(minutes=30), 48)}
"""The length of a part, and the number of parts."""
LOOKS = 200
"""Events of a kind, an outcome and a part that are looked at; of the first 40 also waits and workspaces."""
FRESH, MOST = 15.0, 50
"""For so many seconds a trend is shown to everybody, and so many are kept."""

# As the functions of the schema pin theirs: with its values, a plan opens only the chunks of the time.
PLANS = """select set_config(name, value, true) from (values ('plan_cache_mode', 'force_custom_plan'), ('jit', 'off')
, ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_sort', 'off')) as setting (name, value)"""
_PART = """agent.event_hist as h where h.kind = p.kind and h.outcome = p.outcome
and h.finished_at >= b.began and h.finished_at < b.began + $4::interval
and h.event_ts between $2::timestamptz - interval '168 hours' and $3::timestamptz + interval '25 hours'"""
READ = f"""
with pairs as materialized (
    select p.* from (
        select k.kind, o.outcome, $2::timestamptz as began from agent.kind as k
        cross join unnest(array['completed', 'failed', 'cancelled', 'expired']) as o (outcome)
        where $1::text is null or k.kind = $1
    ) as p cross join (select $2::timestamptz as began) as b
    where exists (select from {_PART.replace("$4::interval", "($3 - $2)")}) limit 60
)
select p.outcome, part.nth, f.*, l.id as last
from pairs as p cross join generate_series(0, $5::int4 - 1) as part (nth)
cross join lateral (select $2::timestamptz + part.nth * $4::interval as began) as b
cross join lateral (
    select count(*) as looked, percentile_disc(array[0.1, 0.9]) within group (order by s.id) as ids
    , percentile_disc(array[0.5, 0.95]) within group (order by s.wait) filter (where s.nth <= 40) as waits
    , array_agg(substring(s.group_key from '^([TE][A-Z0-9]+):')) filter (where s.nth <= 40) as workspaces
    from (
        select h.id, h.group_key, extract(epoch from h.claimed[1] - h.enqueued_at)::float8 as wait
        , row_number() over (order by h.finished_at) as nth
        from {_PART} order by h.finished_at limit {LOOKS}
    ) as s
) as f
left join lateral (
    select percentile_disc(0.5) within group (order by s.id) as id from (
        select h.id from {_PART} and f.looked = {LOOKS} order by h.finished_at desc limit 9
    ) as s
) as l on true
where f.looked > 0
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class Trend:
    """What happened in each part of a span, the oldest first.

    ``ended``: how many, by outcome. ``waits``: the median and the 95th percentile of the seconds to the first claim,
    of the slowest kind. ``depths``: when, and how many were pending, running and scheduled. ``workspaces``: how many
    of each ended. ``estimated``: whether a count is an estimate.
    """

    starts: Sequence[datetime]
    ended: dict[str, list[float]]
    waits: list[tuple[float, float] | None]
    workspaces: dict[str, list[float]]
    depths: list[tuple[datetime, tuple[int, ...]]]
    estimated: bool


class Trends:
    """The trends, read for all callers at once."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._kept: dict[tuple[str | None, str], tuple[float, Trend]] = {}

    async def latest(self, kind: str | None, span: str) -> Trend:
        """Return the trend of a kind, or of all, over one of :data:`SPANS`."""
        read_at, trend = self._kept.get((kind, span), (0.0, None))
        if trend is None or time.monotonic() - read_at > FRESH:
            trend = await self._read(kind, *SPANS[span])
            self._kept[kind, span] = time.monotonic(), trend
            self._kept = dict(list(self._kept.items())[-MOST:])
        return trend

    async def _read(self, kind: str | None, part: timedelta, parts: int) -> Trend:
        async with self._calls.transaction() as connection:
            await connection.execute(PLANS)
            now = await connection.fetchval("select agent.clock()")
            seconds = part.total_seconds()
            until = datetime.fromtimestamp((now.timestamp() // seconds + 1) * seconds, UTC)
            since = until - parts * part
            rows = await connection.fetch(READ, kind, since, until, part, parts)
            trail = json.loads(await connection.fetchval("select trail from agent.measurement"))
        starts = [since + nth * part for nth in range(parts)]
        return _trend(starts, rows, [each for each in _depths(trail, kind) if each[0] >= since])


def _trend(starts: Sequence[datetime], rows: Sequence[Row], depths: list[Any]) -> Trend:
    ended, workspaces = (defaultdict[str, list[float]](lambda: [0.0] * len(starts)) for _ in range(2))
    waits: list[tuple[float, float] | None] = [None] * len(starts)
    for row in rows:
        nth, known = row["nth"], row["workspaces"]
        count = estimate(row["looked"], row["ids"], row["last"])
        ended[row["outcome"]][nth] += count
        if row["waits"] and row["waits"][0] is not None:
            waits[nth] = max(waits[nth] or (0.0, 0.0), tuple(row["waits"]))
        for workspace, share in Counter(filter(None, known)).items():
            workspaces[workspace][nth] += count * share / len(known)
    estimated = any(row["looked"] == LOOKS for row in rows)
    return Trend(starts, dict(ended), waits, dict(workspaces), depths, estimated)


def estimate(looked: int, ids: Sequence[int], last: int | None) -> float:
    """Estimate a part's events from the ids of the first ones, and of the last.

    Ids count all events that are stored, so quiet times and bursts do not mislead: as many ids as the first ones
    span have as many events of this kind and outcome again.
    """
    low, high = ids
    known = last is not None and high > low
    return max(float(looked), 0.8 * looked * (last - low) / (high - low) if known else 0.0)  # type: ignore[operator]


def _depths(trail: Sequence[Any], kind: str | None) -> list[Any]:
    """Return the depths that were measured: of one kind, or the sums of all."""
    found = []
    for at, kinds in trail:
        wanted = [depth for name, depth in (kinds or {}).items() if kind in (None, name)]
        found.append(
            (datetime.fromtimestamp(at, UTC), tuple(sum(each[nth] for each in wanted) for nth in range(3)))
        )
    return found

"""How the queue went in the last hour or day: a bounded look at history, and the depths that were measured."""

import json
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from surelane.calls import Calls

SPANS: Final = {"hour": (timedelta(minutes=1), 60), "day": (timedelta(minutes=30), 48)}
"""The length of a part, and the number of parts."""
LOOKS = 200
"""Events of a kind, an outcome and a part that are looked at; of the first 40 also waits and workspaces."""
FRESH = 15.0
"""For so many seconds a trend is shown to everybody."""
# As the functions of the schema pin theirs: with its values, a plan opens only the chunks of the time.
PLANS = """select set_config(name, value, true) from (values ('plan_cache_mode', 'force_custom_plan'), ('jit', 'off')
, ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_sort', 'off')) as setting (name, value)"""
_FROM = """from agent.event_hist as h where h.kind = p.kind and h.outcome = p.outcome and h.finished_at >= p.began
and h.event_ts between $2::timestamptz - interval '168 hours' and $3::timestamptz + interval '25 hours'"""
_PART = f"{_FROM} and h.finished_at < p.began + $4::interval order by h.finished_at"
# Of many events the number is estimated by their ids, which count what is stored. So neither a burst nor a quiet time
# misleads: where the first 200 span as many ids, as many ids have as many events again.
READ = f"""
select p.outcome, p.nth, f.waits, f.workspaces, f.looked = {LOOKS} as estimated
, greatest(f.looked, 0.8 * f.looked * (l.id - f.ids[1]) / nullif(f.ids[2] - f.ids[1], 0))::float8 as events
from (
    select p.kind, p.outcome, part.nth, $2::timestamptz + part.nth * $4::interval as began
    from (select p.* from (
        select k.kind, o.outcome, $2::timestamptz as began from agent.kind as k
        cross join unnest(array['completed', 'failed', 'cancelled', 'expired']) as o (outcome)
        where $1::text is null or k.kind = $1) as p where exists (select {_FROM}) limit 60
    ) as p cross join generate_series(0, $5::int4 - 1) as part (nth)
) as p
cross join lateral (
    select count(*) as looked, percentile_disc(array[0.1, 0.9]) within group (order by s.id) as ids
    , percentile_disc(array[0.5, 0.95]) within group (order by s.wait) filter (where s.nth <= 40) as waits
    , array_agg(substring(s.group_key from '^([TE][A-Z0-9]+):')) filter (where s.nth <= 40) as workspaces
    from (
        select h.id, h.group_key, extract(epoch from h.claimed[1] - h.enqueued_at)::float8 as wait
        , row_number() over (order by h.finished_at) as nth {_PART} limit {LOOKS}
    ) as s
) as f
cross join lateral (
    select percentile_disc(0.5) within group (order by s.id) as id
    from (select h.id {_PART.replace("order", f"and f.looked = {LOOKS} order")} desc limit 9) as s
) as l
where f.looked > 0
"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class Trend:
    """What each part has: ``series`` has outcomes, depths by state, and waits; ``workspaces`` how many events ended.

    Waits are the seconds to the first claim, of the slowest kind. ``estimated``: whether a count is an estimate.
    """

    starts: list[datetime]
    series: dict[str, list[float]]
    workspaces: dict[str, list[float]]
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
        return trend

    async def _read(self, kind: str | None, part: timedelta, parts: int) -> Trend:
        async with self._calls.transaction() as connection:
            await connection.execute(PLANS)
            ((now, trail),) = await connection.fetch("select agent.clock(), trail from agent.measurement")
            last = datetime.fromtimestamp(now.timestamp() // part.total_seconds() * part.total_seconds(), UTC)
            starts = [last - nth * part for nth in reversed(range(parts))]
            rows = await connection.fetch(READ, kind, starts[0], last + part, part, parts)
        series, workspaces = (defaultdict[str, list[float]](lambda: [0.0] * parts) for _ in range(2))
        for row in rows:
            nth, known, events = row["nth"], row["workspaces"], row["events"]
            series[row["outcome"]][nth] += events
            for name, wait in zip(("p50", "p95"), row["waits"] or (), strict=False):
                series[name][nth] = max(series[name][nth], wait)
            for workspace, share in Counter(filter(None, known)).items():
                workspaces[workspace][nth] += events * share / len(known)
        for at, kinds in json.loads(trail):  # each holds until the next measurement, five minutes later
            first = (datetime.fromtimestamp(at, UTC) - starts[0]) // part
            depths = [depth for name, depth in (kinds or {}).items() if kind in (None, name)]
            for nth in range(max(first, 0), min(first + max(timedelta(minutes=5) // part, 1), parts)):
                for state, name in enumerate(("pending", "running", "scheduled")):
                    series[name][nth] = sum(depth[state] for depth in depths)
        return Trend(starts, series, workspaces, any(row["estimated"] for row in rows))

"""Check that old history goes."""

from collections.abc import Sequence

from surelane.calls import Connection
from surelane_operator.doctor.finding import Finding, judged, ok, span

HOUR = 3600.0
DAY = 24 * HOUR


async def retention(connection: Connection) -> Sequence[Finding]:
    """Find out whether workers drop old history, or a transaction keeps them from it."""
    row = await connection.fetchrow(
        "select extract(epoch from older_than)::float8 as kept"
        ", extract(epoch from agent.clock() - done_at)::float8 as done"
        ", extract(epoch from agent.clock() - blocked_at)::float8 as blocked from agent.retention"
    )
    if row is None or row["kept"] is None:
        advice = "a worker does so two minutes after its start, unless SURELANE_HISTORY_RETENTION is off"
        return [ok("history", f"no worker has dropped old history yet: {advice}")]
    kept = f"history is kept for {span(row['kept'])}"
    if row["blocked"] is not None:
        found = f"{kept}, but another transaction has locked older history for {span(row['blocked'])}"
        advice = "find it in pg_stat_activity, and end it if it is not needed"
        return [judged("history", row["blocked"], found, advice, warn=HOUR, fail=7 * DAY)]
    found = f"{kept}; a worker dropped what is older {span(row['done'])} ago"
    advice = "see the workers' logs: retention failed, or SURELANE_HISTORY_RETENTION is off now"
    return [judged("history", row["done"], found, advice, warn=DAY, fail=30 * DAY)]

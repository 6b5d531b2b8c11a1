"""Watch claims from inside the database, and read the workers' logs."""

import asyncio

from tests.chaos.handlers import AT_ONCE
from tests.deploy.compose import Project

WATCH = f"""
create schema chaos;
create table chaos.double_claim (event int8, at timestamptz, holder text, claimant text);
create table chaos.over_limit (at timestamptz, running int8);
create function chaos.see_claim() returns trigger language plpgsql security definer as $$
begin
    if old.claimed_by is not null and old.vt > clock_timestamp() then
        insert into chaos.double_claim values (new.id, clock_timestamp(), old.claimed_by, new.claimed_by);
    end if;
    insert into chaos.double_claim
    select o.id, clock_timestamp(), o.claimed_by, new.claimed_by
    from agent.event o
    where o.group_key = new.group_key and o.id <> new.id
      and o.claimed_by <> new.claimed_by and o.vt > clock_timestamp();
    insert into chaos.over_limit
    select clock_timestamp(), count(*) from agent.event o
    where o.kind = 'slack.app_mention' and o.claimed_by is not null and o.vt > clock_timestamp()
    having count(*) > {AT_ONCE};
    return null;
end $$;
create trigger chaos_see_claim after update on agent.event for each row
when (cardinality(new.claimed) > cardinality(old.claimed)) execute function chaos.see_claim();
"""
"""Records every claim of an event while another worker has a live lease on it or on its group, or over the limit."""

DOUBLE = """
select (select count(*) from chaos.double_claim)
     + (select count(*) - count(distinct id) from agent.event_hist)
"""


RERUN = """
select coalesce(extract(epoch from max(claimed[array_upper(claimed, 1)])), 0) from agent.event_hist
where changes @> '[{"action": "rescued"}]' and finished_at > to_timestamp(%s)
"""
REPEATED = "select count(*) from agent.event_hist where attempts > 1 and finished_at > to_timestamp(%s)"
"""A claim whose answer was lost is released: it never ran, and is no attempt."""


async def watch(project: Project) -> None:
    """Start to watch."""
    await asyncio.to_thread(project.query, WATCH)


async def double_handled(project: Project) -> int:
    """Count the events that had two valid claims at once, or ended twice."""
    return int(await asyncio.to_thread(project.query, DOUBLE))


async def over_limit(project: Project) -> int:
    """Count the claims after which more events ran than the limit allows."""
    return int(await asyncio.to_thread(project.query, "select count(*) from chaos.over_limit"))


async def rescued_within(project: Project, since: float) -> float:
    """Seconds until the last event of a dead worker was claimed again. Below 0: it had none."""
    return float(await asyncio.to_thread(project.query, RERUN % since)) - since


async def repeated(project: Project, since: float) -> int:
    """Events that ended after ``since`` with more than one attempt."""
    return int(await asyncio.to_thread(project.query, REPEATED % since))


async def stale_settles(project: Project, since: float) -> int:
    """Count the workers' log lines about stale claims. Some are repeated on another connection."""
    return sum([await logged(project, what, since) for what in ("stale settle", "stale settle, sent twice")])


async def logged(project: Project, what: str, since: float) -> int:
    """Count the workers' log lines with this text."""
    logs = await asyncio.to_thread(project.compose, "logs", "--no-color", f"--since={since:.3f}", "worker")
    return logs.count(f'"{what}"')

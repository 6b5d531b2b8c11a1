-- The named schedules whose time has come, and the database's own now: a worker's clock decides nothing.
create or replace function agent.due_cron()
returns table (name text, kind text, schedule text, time_zone text, catch_up text, next_at timestamptz, now_at timestamptz)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _now timestamptz := agent.clock();
begin
    return query
    select c.name, c.kind, c.schedule, c.time_zone, c.catch_up, c.next_at, _now from agent.cron as c
    where not c.paused and c.next_at <= _now order by c.next_at;
end
$$;

-- Seconds until the next named schedule that is not due yet will be, by the database's clock; null where there is none.
create or replace function agent.next_cron() returns float8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _now timestamptz := agent.clock();
begin
    return (select extract(epoch from min(next_at) - _now) from agent.cron where not paused and next_at > _now);
end
$$;

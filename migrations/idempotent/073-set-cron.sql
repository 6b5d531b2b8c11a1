-- Creates or changes a named schedule. Its next firing is computed by the caller, who reads cron and time zones. _paused null
-- leaves an existing one as it is. Wakes the workers, who then know when it is due.
create or replace function agent.set_cron
( _name text, _kind text, _schedule text, _next_at timestamptz, _payload jsonb default '{}', _time_zone text default 'UTC', _catch_up text default 'one'
, _paused boolean default false
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if jsonb_typeof(_payload) is distinct from 'object' then
        raise invalid_parameter_value using message = 'the payload of a schedule is a JSON object';
    -- Not left to the constraints, whose violations quote the row, payload and all, in PostgreSQL's log.
    elsif _name is null or _name = '' or length(_name) > 200 then
        raise invalid_parameter_value using message = 'the name of a schedule has 1 to 200 characters';
    elsif _kind is null or _kind = '' or length(_kind) > 200 then
        raise invalid_parameter_value using message = 'a kind has 1 to 200 characters';
    elsif _schedule is null or _time_zone is null or _next_at is null then
        raise invalid_parameter_value using message = 'a schedule has fields, a time zone and a next firing';
    elsif _catch_up is null or _catch_up not in ('none', 'one', 'all') then
        raise invalid_parameter_value using message = 'what was missed is caught up with: none, one or all';
    end if;
    insert into agent.cron as c (name, kind, payload, schedule, time_zone, catch_up, paused, next_at)
    values (_name, _kind, _payload, _schedule, _time_zone, _catch_up, coalesce(_paused, false), _next_at)
    on conflict (name) do update
    set kind = excluded.kind, payload = excluded.payload, schedule = excluded.schedule, time_zone = excluded.time_zone
    , catch_up = excluded.catch_up, paused = coalesce(_paused, c.paused), updated_at = agent.clock(), updated_by = session_user
    -- An unchanged schedule keeps its next firing: declaring it again at every start must not skip one.
    , next_at = case when (c.schedule, c.time_zone, c.paused) = (excluded.schedule, excluded.time_zone, coalesce(_paused, c.paused)) then c.next_at else excluded.next_at end;
    perform pg_notify('agent_event', '');
end
$$;

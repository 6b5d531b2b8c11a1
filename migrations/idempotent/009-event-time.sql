-- When an event happened: its event_ts, else the envelope's event_time, else now; exact says which. A timestamp counts
-- if it is well-formed, not before 2013 and not more than a day ahead: each stray one would open a chunk of history.
create or replace function agent.event_time(_event jsonb, _now timestamptz, out event_ts timestamptz, out exact boolean)
language plpgsql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    _given text := agent.slack_event(_event) ->> 'event_ts';
begin
    foreach _given in array array[_given, _event ->> 'event_time'] loop
        if _given ~ '^[0-9]{1,11}(\.[0-9]{1,20})?$' then
            event_ts := agent.to_timestamptz(_given::numeric);
            if event_ts >= '2013-01-01 00:00:00+00' and event_ts <= _now + interval '1 day' then
                exact := true;
                return;
            end if;
        end if;
    end loop;
    event_ts := _now;
    exact := false;
end
$$;

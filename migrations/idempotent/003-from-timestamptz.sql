-- A timestamptz as Slack's Unix timestamp, exact to the microsecond.
create or replace function agent.from_timestamptz(_ts timestamptz) returns numeric
language plpgsql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if not isfinite(_ts) then
        raise invalid_parameter_value using message = format('%s has no Unix timestamp', _ts);
    end if;
    return extract(epoch from _ts);
end
$$;

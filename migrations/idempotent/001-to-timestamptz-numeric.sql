-- Slack's Unix timestamp as a timestamptz, exact to the microsecond (double precision is not).
create or replace function agent.to_timestamptz(_ts numeric) returns timestamptz
language plpgsql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if _ts = 'NaN' or abs(_ts) >= 100000000000 then
        raise invalid_parameter_value using message = format('%s is not a Unix timestamp in seconds', left(_ts::text, 40))
        , hint = 'Slack writes timestamps as 1469470591.759709.';
    end if;
    return timestamptz 'epoch' + interval '1 second' * trunc(_ts)::float8
        + interval '1 microsecond' * round((_ts - trunc(_ts)) * 1000000)::float8;
end
$$;

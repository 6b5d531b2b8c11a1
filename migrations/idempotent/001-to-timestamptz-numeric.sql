-- Slack's Unix timestamp as a timestamptz, exact to the microsecond (double precision is not).
create or replace function agent.to_timestamptz(_ts numeric) returns timestamptz
language plpgsql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    -- From the first day PostgreSQL knows to the last one of 9999; beyond, the multiplication below would not be exact.
    if _ts = 'NaN' or _ts < -210866803200 or _ts >= 253402300800 then
        raise invalid_parameter_value using message = format('%s is not a Unix timestamp in seconds', left(_ts::text, 40))
        , hint = 'Slack writes timestamps as 1469470591.759709.';
    end if;
    return timestamptz 'epoch' + interval '1 second' * trunc(_ts)::float8
        + interval '1 microsecond' * round((_ts - trunc(_ts)) * 1000000)::float8;
end
$$;

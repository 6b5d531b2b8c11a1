-- The same for Slack's text form, such as '1469470591.759709'.
create or replace function agent.to_timestamptz(_ts text) returns timestamptz
language plpgsql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if _ts !~ '^\s*[+-]?[0-9]{1,20}(\.[0-9]{0,20})?\s*$' then
        raise invalid_parameter_value using message = format('%L is not a Unix timestamp in seconds', left(_ts, 40))
        , hint = 'Slack writes timestamps as 1469470591.759709.';
    end if;
    return agent.to_timestamptz(_ts::numeric);
end
$$;

-- The schema's version, and the oldest version of the services that it serves.
create or replace function agent.schema_version(out version text, out min_compatible text)
language sql stable security definer
set search_path = pg_catalog, pg_temp
begin atomic
    select v.version::text, v.min_compatible::text from agent.version as v;
end;

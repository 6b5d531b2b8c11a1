-- A worker says that it is alive and what it handles. One that has been silent for a day is forgotten.
create or replace function agent.announce_worker(_name text, _kinds text[], _version text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into agent.worker as w (name, kinds, version) values (_name, _kinds, _version)
    on conflict (name) do update set kinds = excluded.kinds, version = excluded.version, seen_at = agent.clock();
    delete from agent.worker where seen_at < agent.clock() - interval '1 day';
end
$$;

-- Whether a worker that last announced itself then counts as alive. Workers do so every 20 seconds, those of the release before
-- once a minute.
create or replace function agent.worker_alive(_seen_at timestamptz) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
return _seen_at > agent.clock() - interval '90s';

-- A worker says that it is alive and what it handles; groups that waited behind kinds which nobody handled, or behind
-- one that it handles, get their heads accordingly. _max_attempts: what its events without a maximum of their own may have. One that has been silent for a day is forgotten. _clock_offset: its clock less ours.
create or replace function agent.announce_worker
( _name text, _kinds text[], _version text, _clock_offset interval default null, _max_attempts int4 default null
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _known boolean := exists (select from agent.worker where name = _name and kinds = _kinds);
begin
    insert into agent.worker as w (name, kinds, version, clock_offset, max_attempts, started_at, seen_at)
    values (_name, _kinds, _version, _clock_offset, _max_attempts, agent.clock(), agent.clock())
    on conflict (name) do update set kinds = excluded.kinds, version = excluded.version, clock_offset = excluded.clock_offset
    , max_attempts = excluded.max_attempts, seen_at = agent.clock();
    delete from agent.worker where seen_at < agent.clock() - interval '1 day';
    perform agent.register_kinds(_kinds);
    -- Of several settings for a kind, that of the worker which started last holds: so a change of it prevails as workers roll.
    update agent.kind set max_attempts = _max_attempts
    where kind in (
        select k.kind from agent.kind as k where k.kind = any(_kinds) and k.max_attempts is distinct from _max_attempts
        and not exists (select from agent.worker as w where k.kind = any(w.kinds) and w.max_attempts is not null and w.name <> _name
            and w.started_at > (select started_at from agent.worker where name = _name))
        order by k.kind for update skip locked)
    and _max_attempts is not null;
    if not _known then
        perform agent.sweep_groups();
    end if;
end
$$;

-- The kinds whose events somebody will claim: not paused and, where workers have announced themselves, handled by one of them,
-- or by one that retired within three minutes: as workers are replaced, a kind may have none for some seconds. Measured from
-- the last announcement or retirement, not from now: while no worker runs, those that ran last are what is known. A retirement
-- is forgotten after a day, as a silent worker is.
create or replace function agent.claimable_kinds() returns text[]
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = on
as $$
declare
    _since timestamptz := greatest((select max(seen_at) from agent.worker)
        , (select max(handled_at) from agent.kind where handled_at > agent.clock() - interval '1 day')) - interval '3 minutes';
begin
    return array(
        select k.kind from agent.kind as k where not k.paused
        and (_since is null or k.handled_at >= _since
            or exists (select from agent.worker as w where w.seen_at >= _since and k.kind = any(w.kinds))));
end
$$;

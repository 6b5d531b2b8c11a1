-- What a worker's sweep does in one bounded batch: lapsed last attempts, passed deadlines, groups with a head that cannot be claimed, and where
-- _by_age, events of _kinds that are too old. Returns how many it moved to history. Sweeps step over each other's locks.
create or replace function agent.sweep_events
( _max_attempts int4 default 3, _max_vt_age interval default '1h', _kinds text[] default null, _by_age boolean default true, _limit int4 default 1000
) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform agent.sweep_groups(_limit), agent.sweep_waiting(_limit);
    return agent.sweep_exhausted(_max_attempts, _limit) + agent.sweep_by_deadline(_limit)
        + case when _by_age then agent.sweep_by_age(_max_vt_age, _kinds, _limit) else 0 end;
end
$$;

-- What a worker's sweep does in one bounded batch: lapsed last attempts, passed deadlines and, where _by_age, events of _kinds that
-- are too old, up to _limit of each. Returns how many it moved to history: call it again until that is none. Beforehand, where _mend,
-- what moves no event: groups with a head that cannot be claimed, continuations whose children are gone, kinds that are not known.
-- That looks at every group, so of many calls in a row only the first does it. _max_attempts holds for events that neither have a
-- maximum nor are of a kind that has one; null leaves those to others. Sweeps step over each other's locks.
create or replace function agent.sweep_events
( _max_attempts int4 default null, _max_vt_age interval default '1h', _kinds text[] default null, _by_age boolean default true
, _limit int4 default 1000, _mend boolean default true
) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if _mend then
        perform agent.sweep_kinds(), agent.sweep_groups(_limit), agent.sweep_waiting(_limit);
    end if;
    return agent.sweep_exhausted(_max_attempts, _limit) + agent.sweep_by_deadline(_limit)
        + case when _by_age then agent.sweep_by_age(_max_vt_age, _kinds, _limit) else 0 end;
end
$$;

-- Registers the kinds of queued events that agent.kind lacks: their first insert left that to a transaction that rolled back.
create or replace function agent.sweep_kinds() returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
begin
    perform agent.register_kinds(array(
        with recursive found (lane, kind) as (
            select lanes.lane, (select kind from agent.event where head and event.lane = lanes.lane order by kind limit 1)
            from (select nth::int2 from generate_series(0, 15) as nth) as lanes (lane)
            union all
            select lane, (select kind from agent.event where head and event.lane = found.lane and event.kind > found.kind order by kind limit 1)
            from found where found.kind is not null
        )
        select kind from found where kind is not null));
end
$$;

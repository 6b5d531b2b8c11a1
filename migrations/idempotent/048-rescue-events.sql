-- Ends the leases of claims that have sent no heartbeat for _dead_for: their worker has crashed. A worker takes a claim for lost as
-- long after its last heartbeat (surelane.events.DEAD_FOR, the same five minutes), so that none works on what is freed here. Their attempts count, and
-- they are claimed again as lapsed leases are. Claims that send no heartbeats are left to their vt. Returns how many.
create or replace function agent.rescue_events(_dead_for interval default '5m') returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _now timestamptz := agent.clock();
    _rescued int4;
begin
    update agent.event set vt = _now
    where id in (select id from agent.event where attempts > 0 and vt > _now and claimed_by is not null and heartbeat_at < _now - _dead_for
                 order by id for update skip locked);
    get diagnostics _rescued = row_count;
    if _rescued > 0 then
        perform pg_notify('agent_event', '');
    end if;
    return _rescued;
end
$$;

-- Renews leases; a group shares one lease, so extending one member's extends all that are held. Stale: the lease is lost.
create or replace function agent.extend_leases(_ids int8[], _claims int4[], _invisible_for interval default '10m')
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _held int8[] := agent.hold_claims(_ids, _claims);
    _groups text[] := array(select distinct group_key from agent.event where id = any(_held) and group_key is not null);
    _now timestamptz := agent.clock();
begin
    _held := _held
        || array(select id from agent.event where group_key = any(_groups) and not head and claimed_by is not null)
        || array(select id from agent.event where group_key = any(_groups) and head and claimed_by is not null);
    update agent.event set vt = _now + _invisible_for, heartbeat_at = _now where id = any(_held);
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _held) as a;
end
$$;

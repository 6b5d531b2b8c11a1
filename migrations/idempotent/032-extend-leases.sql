-- Renews leases; a group shares one lease, so extending one member's extends all that are held. Stale: the lease is lost. Busy:
-- another transaction has the row locked, or the head of its group. Waits for no row.
create or replace function agent.extend_leases(_ids int8[], _claims int4[], _invisible_for interval default '10m')
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '100ms'
as $$
declare
    _held int8[];
    _groups text[];
    _now timestamptz := agent.clock();
begin
    begin
        _held := agent.hold_claims(_ids, _claims);
        _groups := array(select distinct group_key from agent.event where id = any(_held) and group_key is not null);
        if _groups <> '{}' then
            _held := _held
                || array(select id from agent.event where group_key = any(_groups) and not head and claimed_by is not null for update skip locked)
                || array(select id from agent.event where group_key = any(_groups) and head and claimed_by is not null for update skip locked);
        end if;
        update agent.event set vt = _now + _invisible_for, heartbeat_at = _now where id = any(_held);
    exception when lock_not_available or deadlock_detected then
        -- skip locked may wait all the same where a row is being updated at that moment.
        _held := '{}';
    end;
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _held) as a;
end
$$;

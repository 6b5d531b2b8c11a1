-- Gives claimed events back at once, their attempts not counted. Where a lock is not to be had within 30 ms it tries the halves
-- of the batch, as complete_others does.
create or replace function agent.release_events(_ids int8[], _claims int4[])
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '30ms'
as $$
declare
    _half int4 := cardinality(_ids) / 2;
    _held int8[];
begin
    begin
        _held := agent.give_back(agent.hold_claims(_ids, _claims));
    exception when lock_not_available or deadlock_detected then
        if _half > 0 then
            return query select a.ordinal, a.answer from agent.release_events(_ids[:_half], _claims[:_half]) as a;
            return query select a.ordinal + _half, a.answer from agent.release_events(_ids[_half + 1:], _claims[_half + 1:]) as a;
            return;
        end if;
        _held := '{}';
    end;
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _held) as a;
end
$$;

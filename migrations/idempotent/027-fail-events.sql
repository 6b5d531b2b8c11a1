-- Records failed attempts. An event is tried again after its _retry_in; it goes to history at once, as failed, where that
-- was its last attempt or _final says so, and as cancelled where it was asked to be cancelled meanwhile. Where a lock is not
-- to be had within 30 ms it tries the halves of the batch, as complete_others does.
create or replace function agent.fail_events
( _ids int8[], _claims int4[], _errors jsonb[], _retry_in interval[], _final boolean[] default null, _reasons text[] default null
, _max_attempts int4 default null
) returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set lock_timeout = '30ms'
as $$
declare
    _half int4 := cardinality(_ids) / 2;
    _of int8[] := agent.latest_claims(_ids, _claims);
    _held int8[];
    _cancelled int8[];
    _failed int8[];
begin
    begin
        _held := agent.hold_claims(_ids, _claims);
        _cancelled := array(select e.id from agent.event as e where e.id = any(_held) and e.cancelled_by is not null);
        _failed := array(select e.id from agent.event as e where e.id = any(_held)
            and (e.attempts >= coalesce(e.max_attempts, (agent.attempts_of(array[e.kind], _max_attempts))[1]) or coalesce(_final[array_position(_of, e.id)], false)));
        _held := agent.hold_endings(_held, _cancelled || _failed, 'failed');
        update agent.event as e set errors = e.errors || jsonb_build_array(coalesce(_errors[array_position(_of, e.id)], '{}')) where e.id = any(_held);

        perform agent.archive_events(array(select e.id from agent.event as e where e.id = any(_held) and e.id = any(_cancelled))
            , 'cancelled', 'cancelled while running');
        perform agent.archive_events(array(select e.id from agent.event as e where e.id = any(_held) and e.id = any(_failed))
            , 'failed', 'attempts_exhausted', _of, _reasons);
        perform agent.return_events(_held, true, _of, _retry_in);
    exception when lock_not_available or deadlock_detected then
        if _half > 0 then
            return query select a.ordinal, a.answer
            from agent.fail_events(_ids[:_half], _claims[:_half], _errors[:_half], _retry_in[:_half], _final[:_half], _reasons[:_half], _max_attempts) as a;
            return query select a.ordinal + _half, a.answer
            from agent.fail_events(_ids[_half + 1:], _claims[_half + 1:], _errors[_half + 1:], _retry_in[_half + 1:], _final[_half + 1:]
                , _reasons[_half + 1:], _max_attempts) as a;
            return;
        end if;
        _held := '{}';
    end;
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _held) as a;
end
$$;

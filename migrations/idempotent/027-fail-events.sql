-- Records failed attempts. An event is tried again after its _retry_in; it goes to history at once, as failed, where that
-- was its last attempt or _final says so, and as cancelled where it was asked to be cancelled meanwhile.
create or replace function agent.fail_events
( _ids int8[], _claims int4[], _errors jsonb[], _retry_in interval[], _final boolean[] default null, _reasons text[] default null
, _max_attempts int4 default null
) returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _held int8[] := agent.hold_claims(_ids, _claims);
    _of int8[] := agent.latest_claims(_ids, _claims);
begin
    update agent.event as e set errors = e.errors || jsonb_build_array(coalesce(_errors[array_position(_of, e.id)], '{}')) where e.id = any(_held);

    perform agent.archive_events(array(select e.id from agent.event as e where e.id = any(_held) and e.cancelled_by is not null)
        , 'cancelled', 'cancelled while running');
    perform agent.archive_events(array(select e.id from agent.event as e where e.id = any(_held)
            and (e.attempts >= coalesce(e.max_attempts, (agent.attempts_of(array[e.kind], _max_attempts))[1]) or coalesce(_final[array_position(_of, e.id)], false)))
        , 'failed', 'attempts_exhausted', _of, _reasons);
    perform agent.return_events(_held, true, _of, _retry_in);
    return query select a.ordinal, a.answer from agent.settle_answers(_ids, _claims, _held) as a;
end
$$;

-- Moves events from history back into the queue, with their ids, claims and errors, and all their attempts before them.
-- Returns the ids that were moved; one whose item key is live again stays in history. Nothing waits for a requeued child any more.
create or replace function agent.requeue_events(_ids int8[]) returns setof int8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
    _old agent.event_hist;
    _new agent.event;
    _duplicate boolean;
begin
    for _old in select * from agent.event_hist where id = any(_ids) order by group_key, item_key, id for update skip locked loop
        _new := null;
        _new.id := _old.id;
        _new.event_ts := _old.event_ts;
        _new.vt := agent.clock();
        _new.claimed := _old.claimed;
        _new.event := _old.event;
        _new.kind := _old.kind;
        _new.item_key := _old.item_key;
        _new.group_key := _old.group_key;
        _new.max_attempts := _old.max_attempts;
        _new.enqueued_at := _old.enqueued_at;
        _new.enqueued_by := _old.enqueued_by;
        _new.errors := _old.errors;
        _new.traceparent := _old.traceparent;
        _new.changes := agent.add_change(_old.changes, jsonb_build_object('action', 'requeued', 'at', agent.clock(), 'by', session_user
            , 'from', jsonb_build_object('outcome', _old.outcome, 'reason', _old.reason, 'attempts', _old.attempts)));
        select duplicate into _duplicate from agent.add_event(_new, true, false);
        if not _duplicate then
            delete from agent.event_hist where id = _old.id and event_ts = _old.event_ts;
            return next _old.id;
        end if;
    end loop;
end
$$;

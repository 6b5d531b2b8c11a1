-- Enqueues a job; returns its id, or the id of the one that is pending under its dedupe key or live under its item key, which
-- _on_duplicate says what to do with: skip, replace or earliest.
create or replace function agent.enqueue
( _kind text, _payload jsonb default '{}', _dedupe_key text default null, _run_at timestamptz default null, _max_attempts int4 default null
, _group_key text default null, _item_key text default null, _enqueued_by text default null, _deadline timestamptz default null
, _traceparent text default null, _on_duplicate text default 'skip'
) returns int8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return (select id from agent.enqueue_job(agent.job_from_json(jsonb_build_object('kind', _kind, 'payload', _payload, 'dedupe_key', _dedupe_key
        , 'run_at', _run_at, 'max_attempts', _max_attempts, 'group_key', _group_key, 'item_key', _item_key, 'enqueued_by', _enqueued_by
        , 'deadline', _deadline, 'traceparent', _traceparent)), _on_duplicate));
end
$$;

-- Every event, live or in history, under one status: pending, scheduled, running, or its outcome. run_at is when it is due or,
-- of one that runs or ended in an attempt, when that attempt began.
create or replace view agent.job with (security_barrier) as
select id, kind, case when vt <= now() then 'pending' when claimed_by is null then 'scheduled' else 'running' end as status
, event as payload, attempts, max_attempts, claimed_by as locked_by, case when claimed_by is not null and vt > now() then claimed[array_upper(claimed, 1)] else vt end as run_at, errors -> -1 ->> 'message' as error, errors
, null::jsonb as result, null::text as reason, dedupe_key, item_key, group_key, event_ts, enqueued_at, enqueued_by, claimed, heartbeat_at
, deadline, null::timestamptz as finished_at, null::text as finished_by, traceparent, changes, continuation_id, waits_for
, case when claimed_by is not null and vt > now() then vt end as lease_until
from agent.event
union all
select id, kind, outcome, event, attempts, max_attempts, claimed_by
, case when claimed_by is null then vt else claimed[array_upper(claimed, 1)] end, errors -> -1 ->> 'message', errors, result, reason, dedupe_key
, item_key, group_key, event_ts, enqueued_at, enqueued_by, claimed, heartbeat_at, deadline, finished_at, finished_by, traceparent, changes, continuation_id, waits_for
, null::timestamptz
from agent.event_hist;

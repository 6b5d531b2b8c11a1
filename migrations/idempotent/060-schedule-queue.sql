-- The schedule under the names of a classic schedule queue: what is in the queue and what has left it.
create or replace view agent.schedule_queue with (security_barrier) as
select id as schedule_queue_item_id, enqueued_at as enqueued_on, enqueued_by, finished_at as dequeued_on, finished_by as dequeued_by
, case when claimed = '{}' then run_at else event_ts end as schedule_on, payload as data, item_key, greatest(attempts - 1, 0) as redeliver_count, claimed[array_upper(claimed, 1)] as claimed_on
, locked_by as claimed_by, group_key
from agent.job;

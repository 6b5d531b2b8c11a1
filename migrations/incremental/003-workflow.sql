-- Fan-out and fan-in. A continuation waits, invisible, for the events that name it; the last of them to end makes it visible.
alter table agent.event
  add column continuation_id int8          -- the event that waits for this one to end
, add column waits_for int4                -- of a continuation: how many events it still waits for
, add column fails_with_children boolean not null default false  -- of a continuation: ends as failed with the first child that does not complete
, add column changes jsonb not null default '[]'  -- rescheduled, replaced, requeued: when, by whom, from what to what
, add constraint waits_for_not_negative check (waits_for >= 0)
, add constraint changes_is_array check (jsonb_typeof(changes) = 'array');

alter table agent.event_hist
  add column continuation_id int8
, add column waits_for int4
, add column fails_with_children boolean not null default false
, add column changes jsonb not null default '[]';

create index event_continuation on agent.event (continuation_id) where continuation_id is not null;
create index event_hist_continuation on agent.event_hist (continuation_id) where continuation_id is not null;
create index event_waiting on agent.event (id) where waits_for is not null;

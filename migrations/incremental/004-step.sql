-- What durable handlers remember: the steps, sleeps, waits, undos and tags of an event, live or in
-- history. A table of their own: results may be large, and each claim rewrites a row of the queue.
create table agent.step
( event_id int8 not null
, name text not null
, nth int4 not null              -- 1: the first of this name in a run; 0: a list; -1: a tag
, sort text not null constraint step_sort_known
  check (sort in ('step', 'sleep', 'wait', 'undo'))
, event_ts timestamptz not null  -- the event's, by which retention finds it
, arguments text                 -- a hash of what the function was called with
, result json                    -- as written: jsonb would change numbers and the keys' order
, errors jsonb not null default '[]'  -- one object a failed try, oldest first
, attempt int4 not null
, started_at timestamptz not null
, due_at timestamptz             -- when a sleep or a wait ends; null: never
, finished_at timestamptz        -- null: it failed, or has not ended
, in_order boolean not null default false  -- the handler's task began it when all before had ended
, primary key (event_id, name, nth)
);
create index step_event_ts on agent.step (event_ts);
create index step_open on agent.step (started_at, event_id) where sort = 'wait' and finished_at is null;
create index step_tag on agent.step (name, arguments, event_id) where nth = -1;

-- Values that were sent to an event, for its waits of that name.
create table agent.signal
( id int8 not null generated always as identity primary key
, event_id int8 not null
, name text not null
, value json
, sent_at timestamptz not null default clock_timestamp()
, sent_by text not null default session_user
, taken_by int4  -- the number of the wait of this name that has it
, decides boolean not null default false  -- of several answers to a question, the first one counts
);
create index signal_event_id on agent.signal (event_id, name, id);
-- Retention finds signals by it.
create index signal_sent_at on agent.signal (sent_at);

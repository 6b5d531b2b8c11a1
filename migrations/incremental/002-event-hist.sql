-- Every event that ended, and how. A hypertable on event_ts where TimescaleDB is installed.
create table agent.event_hist
( like agent.event
, outcome text not null
, reason text
, result jsonb
, finished_at timestamptz not null default clock_timestamp()
, finished_by text not null default session_user
, constraint event_ts_finite check (isfinite(event_ts))
, constraint outcome_known check (outcome in ('completed', 'failed', 'expired', 'cancelled'))
);
alter table agent.event_hist
  alter column fails_with_children set default false
, alter column changes set default '[]';

create unique index event_hist_id on agent.event_hist (id, event_ts);
create index event_hist_item_key on agent.event_hist (item_key, event_ts) where item_key is not null;
create index event_hist_continuation on agent.event_hist (continuation_id) where continuation_id is not null;
-- Operators list what has ended, newest first, by kind, group or dedupe key. Every index is written
-- for each event that ends, so lists of all kinds go through the first one kind by kind.
create index event_hist_kind on agent.event_hist (kind, outcome, finished_at);
create index event_hist_group_key on agent.event_hist (group_key, finished_at) where group_key is not null;
create index event_hist_dedupe_key on agent.event_hist (dedupe_key, finished_at)
where dedupe_key is not null;
-- Workflows, by when they ended.
create index event_hist_workflow on agent.event_hist (finished_at)
where waits_for is not null and continuation_id is null;

-- Events that ended more than a week away from their event_ts: the days on which they ended, and
-- the weeks of their event_ts. A page of what ended reads history around its days, and in these
-- weeks. Not unique: a transaction that adds a row keeps no other waiting.
create table agent.event_hist_outlier
( finished_on timestamptz not null  -- the start of the day, UTC
, event_week timestamptz not null   -- the start of the week, UTC
);
create index event_hist_outlier_finished_on on agent.event_hist_outlier (finished_on, event_week);

-- What the workers' retention did last (agent.drop_history). One row, once they did.
create table agent.retention
( only_row boolean not null primary key default true check (only_row)
, older_than interval     -- the age that a worker gave; null: none has yet
, done_at timestamptz     -- when a worker last came to the end
, blocked_at timestamptz  -- since when another transaction locks old rows; null: none does
);

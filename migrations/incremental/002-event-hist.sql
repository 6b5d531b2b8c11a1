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

create unique index event_hist_id on agent.event_hist (id, event_ts);
create index event_hist_item_key on agent.event_hist (item_key, event_ts) where item_key is not null;
create index event_hist_outcome on agent.event_hist (outcome, finished_at);

-- Named schedules. Workers compute next_at and fire what is due; the update of next_at decides which of them did.
create table agent.cron
( name text not null primary key check (name <> '' and length(name) <= 200)
, kind text not null check (kind <> '' and length(kind) <= 200)
, payload jsonb not null default '{}'
, schedule text not null          -- five fields, as cron has them
, time_zone text not null default 'UTC'
, catch_up text not null default 'one' check (catch_up in ('none', 'one', 'all'))  -- what was missed while no worker ran
, paused boolean not null default false
, next_at timestamptz not null
, last_at timestamptz
, updated_at timestamptz not null default clock_timestamp()
, updated_by text not null default session_user
);
create index cron_next on agent.cron (next_at) where not paused;

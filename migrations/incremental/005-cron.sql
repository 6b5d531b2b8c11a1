-- Named schedules. Workers compute next_at and fire what is due. Of several, the one fires that
-- changes next_at.
create table agent.cron
( name text not null primary key check (name <> '' and length(name) <= 200)
, kind text not null check (kind <> '' and length(kind) <= 200)
, payload jsonb not null default '{}'
, schedule text not null  -- five fields, as cron has them
, time_zone text not null default 'UTC'
-- How many of the times are caught up with that were missed while no worker ran.
, catch_up text not null default 'one' constraint cron_catch_up_check
  check (catch_up in ('none', 'one', 'all') or catch_up ~ '^[1-9][0-9]{0,2}$' or catch_up = '1000')
, paused boolean not null default false
, next_at timestamptz not null
, last_at timestamptz
, updated_at timestamptz not null default clock_timestamp()
, updated_by text not null default session_user
, priority int2 not null default 1 constraint cron_priority_known check (priority between 0 and 3)
-- What a firing does while an earlier job of its schedule is live.
, overlap text not null default 'allow' constraint cron_overlap_known
  check (overlap in ('allow', 'skip', 'queue', 'replace'))
-- How long after its time a firing comes at most.
, jitter interval not null default '0' constraint cron_jitter_bounded
  check (jitter between interval '0' and interval '1 day')
, problem text            -- why it does not fire; null: it does
);
create index cron_next on agent.cron (next_at) where not paused;

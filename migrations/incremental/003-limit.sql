-- Limits of kinds: agent.hold_limited claims their events.
create table agent.kind_limit
( kind text not null primary key check (kind <> '' and length(kind) <= 200)
-- As the workers that handle the kind declare it.
, per text not null default 'kind' check (per in ('kind', 'workspace', 'channel', 'user', 'given'))
, concurrency int4 constraint concurrency_in_range check (concurrency between 1 and 10000)
, rate int4 constraint rate_in_range check (rate between 1 and 1000000)
, period interval
, grouped boolean not null default false  -- its handler gets a group's events together, as one run
-- As operators changed it. null: as declared; 0: no such bound.
, set_per text check (set_per in ('kind', 'workspace', 'channel', 'user', 'given'))
, set_concurrency int4 constraint set_concurrency_in_range check (set_concurrency between 0 and 10000)
, set_rate int4 constraint set_rate_in_range check (set_rate between 0 and 1000000)
, set_period interval
, set_at timestamptz
, set_by text
, parks boolean not null generated always as
  (coalesce(set_concurrency, concurrency, 0) > 0 or coalesce(set_rate, rate, 0) > 0) stored
, constraint rate_has_period check
  ((rate is null) = (period is null) and (coalesce(set_rate, 0) = 0) = (set_period is null))
);

-- What runs under a key, and what began lately. Only the row with the latest time counts. It is
-- found at the front of the index, however many dead rows follow.
create table agent.limit_state
( kind text not null
, limit_key text collate "C" not null
, at timestamptz not null
, running int8[] not null default '{}'  -- claimed events, where the kind has a concurrency
, starts timestamptz[] not null default '{}'  -- where the kind has a rate: when runs began
, counts int4[] not null default '{}'  -- and how many then
, seen timestamptz not null default '-infinity'  -- no event with an earlier vt waits
, noted timestamptz not null default '-infinity'  -- when the key is looked at again
, blocked_at timestamptz          -- since when events wait for a run to end; null: none does
, long int4 not null default 200  -- once running is so long, ended runs leave it
)
with (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000
, autovacuum_vacuum_cost_delay = 0);
-- To compress a list of ids takes longer than to write it.
alter table agent.limit_state alter running set storage external;
create index limit_state_of on agent.limit_state (kind, limit_key, at desc);
-- An expression: lookups by key might take an index on the column.
create index limit_state_idle on agent.limit_state ((at - timestamptz '1970-01-01 00:00:00+00'));

-- The keys that claims look at, each from a moment on. Each cause adds a row, and waits for no
-- other: a key may be there many times, until a claim has looked at it. An empty key: events from
-- before the kind's limit have to be parked.
create table agent.limit_note
( kind text not null
, limit_key text collate "C" not null
, due_at timestamptz not null
)
with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000
, autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000
, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
, autovacuum_vacuum_cost_delay = 0);
-- With the key, so that the first notes are always read in order. Otherwise the planner may prefer
-- to read all notes of a kind from limit_note_key, and sort them.
create index limit_note_due on agent.limit_note (kind, due_at) include (limit_key);
create index limit_note_key on agent.limit_note (kind, limit_key, due_at);

-- Rows that are locked where one transaction at a time does something (agent.take_turn). Any login
-- can hold an advisory lock without end. A row is locked, never changed, so it leaves no dead rows.
create table agent.turn (name text not null primary key);

-- Slack's own rate limits, one row per limit that was used in the last minutes: per workspace and
-- method, or per channel too. Its calls are leased by agent.lease_slack_calls. Not logged: after a
-- crash all limits begin anew, which costs a few refused calls at most.
create unlogged table agent.slack_limit
( name text primary key constraint slack_limit_name_short check (length(name) <= 400)
, busy timestamptz[] not null default '{}'  -- until when each leased call counts, in order
) with (fillfactor = 50);

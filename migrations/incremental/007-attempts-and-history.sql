-- The maximum of attempts belongs to an event or to its kind: a sweep judges events that other teams' workers handle.
alter table agent.kind
  add column max_attempts int4 constraint kind_max_attempts_positive check (max_attempts > 0)  -- null: no worker has said
-- While workers are replaced, a kind has none for some seconds. So its last retirement is stored.
, add column handled_at timestamptz;  -- when a worker that handled it last retired
alter table agent.worker add column max_attempts int4;  -- its setting, for events without a maximum of their own

-- Operators list what has ended, newest first, by kind, group or dedupe key. Every index is written for each event that
-- ends, so the first one also replaces the index on outcome alone: lists of all kinds go through it kind by kind.
create index event_hist_kind on agent.event_hist (kind, outcome, finished_at);
create index event_hist_group_key on agent.event_hist (group_key, finished_at) where group_key is not null;
create index event_hist_dedupe_key on agent.event_hist (dedupe_key, finished_at) where dedupe_key is not null;
drop index agent.event_hist_outcome;

-- Events that ended more than a week away from their event_ts: on which days, and of which weeks
-- they are. A page of what ended reads history around its days, and in these weeks. Not unique: a
-- transaction that adds a row keeps no other waiting.
create table agent.event_hist_outlier
( finished_on timestamptz not null  -- the start of the day, UTC
, event_week timestamptz not null   -- the start of the week, UTC
);
create index event_hist_outlier_finished_on on agent.event_hist_outlier (finished_on, event_week);

-- A worker proves that it lives by its session: an advisory lock on its connection, which
-- PostgreSQL drops as the process dies. Each session takes a new key, so a lock that is gone never
-- comes back.
create sequence agent.worker_session as int4 cycle;
alter table agent.worker
  add column session int4  -- the key of its lock; null: it has none, and its announcements and heartbeats count alone
, add column died_at timestamptz;  -- when it was taken for dead, and its claims were ended

-- Lanes form bands: events of another priority than 1 have lanes of their own, and so have
-- workspaces whose backlog would hold up others. The lane tells the priority: a column would change
-- the type of the rows that running calls return.
--
-- Checks go of columns that the queue's own functions alone write. PostgreSQL reads a check's
-- expression anew for each statement: these four took a tenth of a claim of one event.
alter table agent.event drop constraint lane_in_range, drop constraint errors_is_array, drop constraint changes_is_array
, drop constraint waits_for_not_negative;
alter table agent.cron add column priority int2 not null default 1 constraint cron_priority_known check (priority between 0 and 3);

-- The bands that the kinds use besides band 0. A transaction that finds no row adds one, and waits
-- for no other that adds the same: a row may be there several times, until a sweep removes the
-- surplus.
create table agent.band
( kind text not null
, band int2 not null constraint band_known check (band between 0 and 11)
-- The events of this workspace go there; '': those of all others; null: claims look there.
, workspace text
-- Other workspaces' events before it were moved out of this workspace's band.
, moved_to timestamptz not null default '-infinity'
);
create index band_of on agent.band (kind, workspace, band);

-- Commands and interactions wait for no other event of their thread, unless their kind keeps its
-- order.
alter table agent.kind add column ordered boolean not null default false;
alter table agent.worker add column ordered text[];  -- its kinds that keep their thread's order; null: it has not said

-- Requests of Slack's that wait in an ingest process for their answer. They are worth nothing after
-- a crash of the server, so their writes need not reach the disk.
create unlogged table agent.request
( event_id int8 not null
, channel text not null             -- where the process listens
, waits_until timestamptz not null
, answer text                       -- JSON; null: there is none yet
, primary key (event_id, channel)
);

-- Slack's own rate limits, one row per limit that was used in the last minutes: per workspace and
-- method, or per channel too. Its calls are leased by agent.lease_slack_calls. Not logged: after a
-- crash all limits begin anew, which costs a few refused calls at most.
create unlogged table agent.slack_limit
( name text primary key constraint slack_limit_name_short check (length(name) <= 400)
, busy timestamptz[] not null default '{}'  -- until when each leased call counts, in order
) with (fillfactor = 50);

-- What durable handlers remember: the steps, sleeps and waits of an event, live or in history. A
-- table of their own: results may be large, and a row of the queue is rewritten with each claim.
create table agent.step
( event_id int8 not null
, name text not null
, nth int4 not null                      -- 1: the first one of this name in a run
, sort text not null constraint step_sort_known check (sort in ('step', 'sleep', 'wait'))
, event_ts timestamptz not null          -- the event's, by which retention finds it
, arguments text                         -- a hash of what the function was called with
, result json                            -- as it was written: jsonb would change numbers and the order of keys
, errors jsonb not null default '[]'     -- one object a failed try, oldest first
, attempt int4 not null
, started_at timestamptz not null
, due_at timestamptz                     -- when a sleep or a wait ends; null: never
, finished_at timestamptz                -- null: it failed, or has not ended
, primary key (event_id, name, nth)
);
create index step_event_ts on agent.step (event_ts);

-- Values that were sent to an event, for its waits of that name.
create table agent.signal
( id int8 not null generated always as identity primary key
, event_id int8 not null
, name text not null
, value json
, sent_at timestamptz not null default clock_timestamp()
, sent_by text not null default session_user
, taken_by int4                          -- which of the waits of this name has it
);
create index signal_event_id on agent.signal (event_id, name, id);

-- Limits of kinds. Events of such a kind are parked: they are in lanes -1 to -4, which only
-- agent.hold_limited looks at.
--
-- The events of a key, in the order in which they are claimed. What a limit counts an event with is
-- its first change, such as {"limit_key": "workspace:T1"}: a column would change the type of the
-- rows that running calls return. The lane is an expression, too: on the column, the planner might
-- take event_claim instead, and read the events of all other keys.
-- To look for duplicates in a full page frees little here, too (see event_pkey, below).
create index event_parked on agent.event (((kind || ' ' || (changes #>> '{0,limit_key}')) collate "C"), (lane::int4), vt)
with (deduplicate_items = off) where lane < 0 and head;

create table agent.kind_limit
( kind text not null primary key check (kind <> '' and length(kind) <= 200)
-- As the workers that handle the kind declare it.
, per text not null default 'kind' check (per in ('kind', 'workspace', 'channel', 'user', 'given'))
, concurrency int4 constraint concurrency_in_range check (concurrency between 1 and 10000)
, rate int4 constraint rate_in_range check (rate between 1 and 1000000)
, period interval
, grouped boolean not null default false  -- its handler gets the events of a group together: that is one run
-- As operators changed it. null: as declared; 0: no such bound.
, set_per text check (set_per in ('kind', 'workspace', 'channel', 'user', 'given'))
, set_concurrency int4 constraint set_concurrency_in_range check (set_concurrency between 0 and 10000)
, set_rate int4 constraint set_rate_in_range check (set_rate between 0 and 1000000)
, set_period interval
, set_at timestamptz
, set_by text
, parks boolean not null generated always as (coalesce(set_concurrency, concurrency, 0) > 0 or coalesce(set_rate, rate, 0) > 0) stored
, constraint rate_has_period check ((rate is null) = (period is null) and (coalesce(set_rate, 0) = 0) = (set_period is null))
);
-- What runs under a key, and what began lately. Only the row with the latest time counts. It is
-- found at the front of the index, however many dead rows follow.
create table agent.limit_state
( kind text not null
, limit_key text collate "C" not null
, at timestamptz not null
, running int8[] not null default '{}'   -- the events that were claimed, where the kind has a concurrency
, starts timestamptz[] not null default '{}'  -- when runs began, and how many, where the kind has a rate
, counts int4[] not null default '{}'
, seen timestamptz not null default '-infinity'  -- no event that is visible before it waits
, noted timestamptz not null default '-infinity'  -- when the key is looked at again
, blocked_at timestamptz  -- since when events wait for a run to end; null: none does
, long int4 not null default 200  -- with so many runs in the list, those that ended are taken out
)
with (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
-- To compress a list of ids takes longer than to write it.
alter table agent.limit_state alter running set storage external;
create index limit_state_of on agent.limit_state (kind, limit_key, at desc);
create index limit_state_idle on agent.limit_state ((at - timestamptz '1970-01-01 00:00:00+00'));  -- on the column, lookups by key might take it
-- The keys that claims are to look at, and from when on. Each cause adds a row, and waits for no
-- other: a key may be there many times, until a claim has looked at it. An empty key: events of the
-- kind are to be parked that came before its limit.
create table agent.limit_note
( kind text not null
, limit_key text collate "C" not null
, due_at timestamptz not null
)
with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_scale_factor = 0
, autovacuum_vacuum_insert_threshold = 50000, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
, autovacuum_vacuum_cost_delay = 0);
-- With the key, so that the first notes are always read in order. Otherwise the planner may prefer
-- to read all notes of a kind from limit_note_key, and sort them.
create index limit_note_due on agent.limit_note (kind, due_at) include (limit_key);
create index limit_note_key on agent.limit_note (kind, limit_key, due_at);

-- Installations of the Slack app by OAuth: the tokens of a workspace or of a whole organization. A
-- row without a person holds the bot's tokens; a row with one holds that person's.
create table agent.installation
( enterprise_wide boolean not null
, owner_id text not null                 -- the organization's id if enterprise_wide, else the workspace's
, user_id text not null default ''
, app_id text not null default ''
, details jsonb not null                 -- ids, names and scopes: no secrets
, sealed bytea not null                  -- the tokens, encrypted by the services; the database has no key
, expires_at timestamptz                 -- when the access token expires; null: never
, version int8 not null default 1        -- counts changes of the tokens: the fence of a refresh
, refreshing_until timestamptz           -- one process refreshes the tokens until then
, installed_at timestamptz not null default clock_timestamp()
, primary key (owner_id, enterprise_wide, user_id)
, constraint installation_ids_short check (owner_id <> '' and length(owner_id) <= 100 and length(user_id) <= 100)
);
create index installation_expires_at on agent.installation (expires_at) where expires_at is not null;

-- The states of OAuth installs that were used, so that none is used again.
create table agent.used_oauth_state
( state bytea primary key                -- its random bytes
, expires_at timestamptz not null
);
create index used_oauth_state_expires_at on agent.used_oauth_state (expires_at);
-- What operators did: who, when, what, and what came of it. Each look at a payload too.
create table agent.operator_action
( id int8 not null generated always as identity primary key
, at timestamptz not null
, who text not null                 -- a person's name, or a script's
, via text not null constraint via_known check (via in ('page', 'api', 'command', 'mcp', 'program'))
, role text not null                -- of the database
, action text not null
, target text                       -- 'event 7', 'kind chat', …; null: many events
, detail jsonb not null
, result jsonb                      -- null: there is none yet, or its process ended before
, seen_at timestamptz               -- when the result was stored last
, finished_at timestamptz           -- null: it goes on, or its process ended before
);
create index operator_action_target on agent.operator_action (target, id);

-- Operators list workflows by when they ended, and the questions that wait for people.
create index event_hist_workflow on agent.event_hist (finished_at) where waits_for is not null and continuation_id is null;
create index step_open on agent.step (started_at, event_id) where sort = 'wait' and finished_at is null;

-- A drained worker claims nothing until it is resumed.
alter table agent.worker add column drained_at timestamptz;

-- A worker says how many handlers it runs at once.
alter table agent.worker
  add column slots int4
, add column interactive_slots int4;  -- besides: for commands and interactions
-- What the workers' retention did last (agent.drop_history). One row, once they did.
create table agent.retention
( only_row boolean not null primary key default true check (only_row)
, older_than interval    -- the age that a worker gave; null: none has yet
, done_at timestamptz    -- when a worker last came to the end
, blocked_at timestamptz -- since when another transaction locks what is to go; null: none does
);
-- Retention finds signals by it.
create index signal_sent_at on agent.signal (sent_at);

-- Receipts of erasures: who asked, when, by which filter, and what was removed. The ids of the
-- filter are hashed with a key that leaves this table at the end. The columns from key on say how
-- far an erasure came.
create table agent.erasure
( id int8 not null generated always as identity primary key
, asked_at timestamptz not null default clock_timestamp()
, asked_by text not null
, filter jsonb not null                   -- hashes: {"user", "team", "channel"}, those that were given
, counts jsonb not null default '{}'      -- removed rows
, finished_at timestamptz
, key text                                -- null once it is finished: only the printed receipt has it
, until int8 not null                     -- the last event that it covers
, place text not null default 'event' constraint erasure_place_known check (place in ('event', 'event_hist', 'step'))
, part timestamptz not null default '-infinity'  -- of history: the first chunk that ends after this
, after int8 not null default 0           -- the last event that it looked at there
, found boolean not null default false    -- this pass over the queue cancelled something
, waiting int4 not null default 0         -- events of this pass that are not cancelled yet
, checking boolean not null default false -- history is done; a last pass over the queue follows
);

-- Events that wait until their workspace or organization installs the app. A row may stay after its
-- event has ended, until an hour after the deadline.
create table agent.install_wait
( event_id int8 not null primary key
, owner_id text not null
, enterprise_wide boolean not null
, until timestamptz not null
);
create index install_wait_owner on agent.install_wait (owner_id, enterprise_wide);
create index install_wait_until on agent.install_wait (until);

-- Workspaces and organizations that have removed the app, until they install it again or their data
-- is erased.
create table agent.uninstall
( owner_id text not null
, enterprise_wide boolean not null       -- the owner is an organization
, enterprise_id text                     -- a workspace's organization
, at timestamptz not null
, erasure_id int8                        -- begun by a worker
, primary key (owner_id, enterprise_wide)
);

-- Data keys: each encrypts what people of one workspace wrote. The services encrypt them in turn, so
-- the database never has one in the clear. Workspace '': events without a workspace.
create table agent.data_key
( id bytea not null primary key
, workspace text not null
, sealed bytea not null                   -- the key, encrypted with one of SURELANE_ENCRYPTION_KEYS
, made_at timestamptz not null default clock_timestamp()
, retired_at timestamptz                  -- since when it encrypts nothing: the workspace is being erased
, constraint data_key_workspace_short check (length(workspace) <= 100)
);
create unique index data_key_current on agent.data_key (workspace) where retired_at is null;

-- Finds an event that was claimed and waits again by its dedupe key. One that was never claimed is
-- in event_dedupe_key. Held ones are in event_attempted: another entry per claim would cost jobs
-- with a dedupe key 8 % of the instructions of a claim and its settle.
create index event_dedupe_key_again on agent.event (dedupe_key) where dedupe_key is not null and claimed <> '{}' and claimed_by is null;

-- Who else reported a message of a shared channel: a workspace, or an organization, whose report was
-- a duplicate. A row may stay after its event has ended.
create table agent.other_report
( event_id int8 not null
, owner_id text not null
, enterprise_wide boolean not null
, at timestamptz not null
, primary key (event_id, owner_id, enterprise_wide)
);
create index other_report_at on agent.other_report (at);

-- Each claim adds an entry of the same id, while the old one is not dead yet. To look for duplicates
-- in a full page then frees nothing, and took a twentieth of a claim's time.
alter index agent.event_pkey set (deduplicate_items = off);

-- A rotation keeps what was sealed before until it has opened what it sealed anew.
alter table agent.installation add column previous bytea;
alter table agent.data_key
  add column previous bytea
, add column left_at timestamptz;  -- since when it encrypts nothing: a rotation could not open it
drop index agent.data_key_current;
create unique index data_key_current on agent.data_key (workspace) where retired_at is null and left_at is null;

-- Of several answers to a question, the first one counts.
alter table agent.signal add column decides boolean not null default false;

-- The newest timeline that services saw of each server (agent.own_timeline).
create table agent.timeline
( system_identifier int8 not null primary key
, newest int4 not null
);

-- The ids of what counts no more on the operator's page: sessions that were signed out, links and
-- sign-ins that were used (agent.use_id).
create table agent.used_id
( id text not null primary key
, expires_at timestamptz not null        -- then its signature does not hold any more, either
);
create index used_id_expires_at on agent.used_id (expires_at);
insert into agent.used_id select 'oauth ' || encode(state, 'hex'), expires_at from agent.used_oauth_state;
drop table agent.used_oauth_state;

-- Tags of events are rows of agent.step with number -1. arguments is the value by which a tag is
-- found. Number 0 is the list of agent.gather, and the progress.
create index step_tag on agent.step (name, arguments, event_id) where nth = -1;
-- What a firing does while an earlier job of its schedule is live, how long after its time it comes
-- at most, and how many missed times are caught up with.
alter table agent.cron
  add column overlap text not null default 'allow' constraint cron_overlap_known check (overlap in ('allow', 'skip', 'queue', 'replace'))
, add column jitter interval not null default '0' constraint cron_jitter_bounded check (jitter between interval '0' and interval '1 day')
, drop constraint cron_catch_up_check
, add constraint cron_catch_up_check check (catch_up in ('none', 'one', 'all') or catch_up ~ '^[1-9][0-9]{0,2}$' or catch_up = '1000');

-- in_order: whether the handler's own task asked for the step, once all that it had asked for before
-- had ended. Handlers register undos with ctx.undo. Not valid: old rows are not read for it.
alter table agent.step
  add column in_order boolean not null default false
, drop constraint step_sort_known
, add constraint step_sort_known check (sort in ('step', 'sleep', 'wait', 'undo')) not valid;

-- Forms that now have defaults instead, and steps of earlier calls. A name without arguments has
-- one form in the release before.
drop function if exists agent.list_jobs, agent.search_jobs, agent.count_jobs, agent.narrow_jobs, agent.due_cron
, agent.peek_events, agent.fence_members, agent.fence_behind, agent.seen_text, agent.open_sessions, agent.give_back
, agent.hold_heads, agent.hold_members, agent.hold_parked, agent.sweep_groups, agent.requeued, agent.replayed_first
, agent.claimed_lane, agent.heartbeat_open, agent.sweep_requests, agent.added_counts, agent.actions_kept, agent.enter_group
, agent.history_has_chunks, agent.lane, agent.lacks_installation, agent.settle_awaiting, agent.below, agent.store_step
-- agent.settle has these outcomes, too.
, agent.fail_events, agent.release_events, agent.snooze_event, agent.await_event, agent.continue_event
-- Programs of the operator alone rotate now: ingest and workers could destroy keys.
, agent.data_keys_to_seal, agent.installations_to_seal, agent.seal_installation;
drop function if exists agent.announce_worker(text, text[], text, interval), agent.announce_worker(text, text[], text, interval, int4)
, agent.cancel_job(int8), agent.cancel_jobs(int8[]), agent.sweep_exhausted(int4, int4), agent.claim_events(text[], int4, int4, interval, text, timestamptz[])
, agent.sweep_events(int4, interval, text[], boolean, int4), agent.set_cron(text, text, text, timestamptz, jsonb, text, text, boolean)
, agent.set_cron(text, text, text, timestamptz, jsonb, text, text, boolean, int4), agent.end_events(int8[], int4[], text[], text, text[], jsonb[])
, agent.store_new_events(int8[], jsonb[], text[], text[]), agent.await_installation(int8, boolean, text, timestamptz);

-- What models used, by day (UTC). Budgets count it. Retention and erasing take rows.
create table agent.model_usage
( day date not null
, owner_id text not null                 -- the workspace; empty without one
, user_id text not null                  -- the person; empty without one
, model text not null
, requests int8 not null
, input_tokens int8 not null
, output_tokens int8 not null
, cost numeric not null                  -- by the team's prices
, latest text not null                   -- the response that was counted last
, primary key (day, owner_id, user_id, model)
);

-- What people set in Slack for agents, such as "answer in French".
create table agent.rule
( id int8 not null primary key           -- of the event that set it, so that it is set once
, owner_id text not null                 -- the workspace
, about text not null                    -- a channel or a person of it, or itself
, said text not null                     -- JSON, encrypted where encryption is on
, set_by text not null
, set_at timestamptz not null
);
create index rule_about on agent.rule (owner_id, about, id);

-- What people think of answers: a row for each turn and person.
create table agent.feedback
( event_id int8 not null                 -- the turn; 0: rating is how often the person was told of it
, owner_id text not null                 -- the person's workspace; empty without one
, user_id text not null
, channel text not null
, kind text not null                     -- of the turn, and its handler's version
, version text not null
, model text not null                    -- of the turn's last response; empty: not known
, rating int4 not null                   -- 1 good, -1 bad
, reason jsonb                           -- encrypted where encryption is on, for its place in click
, click int8 not null                    -- the event that rated last
, at timestamptz not null
, primary key (event_id, owner_id, user_id)
);
create index feedback_at on agent.feedback (at, event_id, user_id);

-- [[seconds since 1970, {kind: [pending, running, scheduled]}], …]: see agent.measure_queue.
alter table agent.measurement add column trail jsonb not null default '[]';

alter table agent.install_wait add column user_id text not null default ''; -- whose account; empty: the bot's
create index install_wait_user on agent.install_wait (user_id) where user_id <> '';

-- A version may be that of a release candidate: 1.0.0rc1.
alter table agent.version drop constraint both_semantic_and_in_order, add constraint both_semantic_and_in_order check
( case when version || ' ' || min_compatible || ' ' ~ '^((0|[1-9]\d{0,8})(\.(0|[1-9]\d{0,8})){2}(rc\d{1,4})? ){2}$'
  then pg_catalog.string_to_array(pg_catalog.split_part(min_compatible, 'rc', 1), '.')::int4[] <= pg_catalog.string_to_array(pg_catalog.split_part(version, 'rc', 1), '.')::int4[] else false end);

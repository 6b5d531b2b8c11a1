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

-- Whether the handler's own task asked for the step, once all that it had asked for before had ended.
alter table agent.step add column in_order boolean not null default false;

-- Forms that now have defaults instead, and steps of earlier calls.
drop function if exists agent.list_jobs(text[], text[], text, timestamptz, timestamptz, timestamptz, int8, int4);
drop function if exists agent.search_jobs(text[], text[], timestamptz, int4);
drop function if exists agent.count_jobs(text[], text[], text, timestamptz, timestamptz, int4);
drop function if exists agent.narrow_jobs(text[], text[], text, timestamptz, timestamptz, timestamptz, int8, int4, text, text, text, text, text[]);
drop function if exists agent.announce_worker(text, text[], text, interval);
drop function if exists agent.announce_worker(text, text[], text, interval, int4);
drop function if exists agent.cancel_job(int8);
drop function if exists agent.claim_events(text[], int4, int4, interval, text, timestamptz[]);
drop function if exists agent.cancel_jobs(int8[]);
drop function if exists agent.sweep_events(int4, interval, text[], boolean, int4);
drop function if exists agent.set_cron(text, text, text, timestamptz, jsonb, text, text, boolean);
drop function if exists agent.set_cron(text, text, text, timestamptz, jsonb, text, text, boolean, int4);
drop function if exists agent.due_cron();
drop function if exists agent.peek_events(text[], interval, int4, timestamptz[]);
drop function if exists agent.sweep_exhausted(int4, int4);
drop function if exists agent.fence_members(text[], timestamptz);
drop function if exists agent.end_events(int8[], int4[], text[], text, text[], jsonb[]);
drop function if exists agent.give_back(int8[], interval[]);
drop function if exists agent.hold_heads(text[], int4, int4, timestamptz, timestamptz[]);
drop function if exists agent.hold_members(tid[], timestamptz[], text[], boolean[], text[], int4, int4, timestamptz);
drop function if exists agent.store_new_events(int8[], jsonb[], text[], text[]);
drop function if exists agent.sweep_groups(int4);
drop function if exists agent.requeued(agent.event_hist);
drop function if exists agent.replayed_first(jsonb);
drop function if exists agent.store_step(int8, int4, text, int4, text, json, jsonb, interval, boolean);
drop function if exists agent.open_step(int8, int4, text, int4, json);
drop function if exists agent.run_child(int8, int4, text, text, jsonb);
drop function if exists agent.hold_parked(text[], text[], int4, int8, int4, interval, timestamptz, timestamptz[]);
-- Programs of the operator alone rotate now: ingest and workers could destroy keys.
drop function if exists agent.data_keys_to_seal(bytea, int4, bytea);
drop function if exists agent.installations_to_seal(bytea, int4, text, boolean, text);
drop function if exists agent.seal_installation(boolean, text, text, bytea, bytea);
-- agent.settle has these outcomes, too.
drop function if exists agent.fail_events(int8[], int4[], jsonb[], interval[], boolean[], text[], int4);
drop function if exists agent.release_events(int8[], int4[]);
drop function if exists agent.snooze_event(int8, int4, interval);
drop function if exists agent.await_event(int8, int4, timestamptz);
drop function if exists agent.continue_event(int8, int4, jsonb, jsonb, jsonb);

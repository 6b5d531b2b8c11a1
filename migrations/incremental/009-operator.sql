-- What operators did: who, when, what, and the result. Each look at a payload too.
create table agent.operator_action
( id int8 not null generated always as identity primary key
, at timestamptz not null
, who text not null        -- a person's name, or a script's
, via text not null constraint via_known check (via in ('page', 'api', 'command', 'mcp', 'program'))
, role text not null       -- of the database
, action text not null
, target text              -- 'event 7', 'kind chat', …; null: many events
, detail jsonb not null
, result jsonb             -- null: there is none yet, or its process ended before
, seen_at timestamptz      -- when the result was stored last
, finished_at timestamptz  -- null: it goes on, or its process ended before
);
create index operator_action_target on agent.operator_action (target, id);

-- The ids of sessions that were signed out, and of links and sign-ins that were used: they hold no
-- more (agent.use_id).
create table agent.used_id
( id text not null primary key
, expires_at timestamptz not null  -- from then on its signature does not hold, either
);
create index used_id_expires_at on agent.used_id (expires_at);

-- Receipts of erasures: who asked, when, by which filter, and what was removed. The ids of the
-- filter are hashed with a key that leaves this table at the end. The columns from key on say how
-- far an erasure came.
create table agent.erasure
( id int8 not null generated always as identity primary key
, asked_at timestamptz not null default clock_timestamp()
, asked_by text not null
, filter jsonb not null            -- hashes of what was given: {"user", "team", "channel"}
, counts jsonb not null default '{}'  -- removed rows
, finished_at timestamptz
, key text                         -- null at the end: only the printed receipt has it
, until int8 not null              -- the last event that it covers
, place text not null default 'event' constraint erasure_place_known
  check (place in ('event', 'event_hist', 'step'))
, part timestamptz not null default '-infinity'  -- of history: the first chunk that ends after this
, after int8 not null default 0    -- the last event that it looked at there
, found boolean not null default false  -- this pass over the queue cancelled something
, waiting int4 not null default 0  -- events of this pass that are not cancelled yet
, checking boolean not null default false  -- history is done; a last pass over the queue follows
);

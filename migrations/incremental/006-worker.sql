-- The workers that are running, as they last said, and the kinds each of them handles.
create table agent.worker
( name text not null primary key
, kinds text[] not null
, version text not null
, started_at timestamptz not null default clock_timestamp()
, seen_at timestamptz not null default clock_timestamp()
, clock_offset interval   -- its clock less the database's
, max_attempts int4       -- its setting, for events without a maximum of their own
-- A worker proves that it lives by an advisory lock on its connection, which PostgreSQL drops as
-- the process dies. The lock's key is drawn at random. null: it has none.
, session int4
, died_at timestamptz     -- when it was taken for dead, and its claims were ended
, ordered text[]          -- its kinds that keep their thread's order; null: it has not said
, drained_at timestamptz  -- since when it claims nothing, until it is resumed
, slots int4              -- how many handlers it runs at once
, interactive_slots int4  -- besides: for commands and interactions
);

-- What was last measured of the queue, for all that show it. A session that measures locks it.
create table agent.measurement
( only_row boolean not null primary key default true check (only_row)
, due timestamptz not null default '-infinity'  -- when it is measured again
, measured_at timestamptz
, figures jsonb not null default '{}'
-- [[seconds since 1970, {kind: [pending, running, scheduled]}], …]: see agent.measure_queue.
, trail jsonb not null default '[]'
);
insert into agent.measurement default values;

-- The newest timeline that services saw of each server (agent.own_timeline).
create table agent.timeline
( system_identifier int8 not null primary key
, newest int4 not null
);

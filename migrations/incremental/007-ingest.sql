-- Requests of Slack's that wait in an ingest process for their answer. They are worth nothing after
-- a crash of the server, so their writes need not reach the disk.
create unlogged table agent.request
( event_id int8 not null
, channel text not null  -- where the process listens
, waits_until timestamptz not null
, answer text            -- JSON; null: there is none yet
, primary key (event_id, channel)
);

-- Deliveries that became no event (agent.note_dropped), in batches, for a day. A
-- delivery is [seconds before at, key, kind, reason, workspace, channel, ts].
create table agent.dropped
( id int8 not null generated always as identity primary key
, at timestamptz not null        -- when the batch was stored
, first_at timestamptz not null  -- of its deliveries
, deliveries jsonb not null      -- a list a delivery
, upto int8 not null             -- bytes of all batches up to this one
);

-- The Socket Mode connections of each ingest process (agent.announce_sockets).
create table agent.socket
( name text not null primary key  -- of the process
, app_id text not null
, sockets int4 not null           -- open, or opening
, seen_at timestamptz not null
, others int4                     -- the app's other connections, as Slack said last
, told_at timestamptz             -- when it did
, since timestamptz               -- since when each of our processes was told of others
);

-- Who else reported a message of a shared channel: a workspace, or an organization, whose report
-- was a duplicate. A row may stay after its event has ended.
create table agent.other_report
( event_id int8 not null
, owner_id text not null
, enterprise_wide boolean not null
, at timestamptz not null
, primary key (event_id, owner_id, enterprise_wide)
);
create index other_report_at on agent.other_report (at);

-- Deliveries that became no event (agent.note_dropped), in batches, for a day.
create table agent.dropped
( id int8 not null generated always as identity primary key
, at timestamptz not null                -- when the batch was stored
, first_at timestamptz not null          -- of its deliveries
, deliveries jsonb not null              -- [[seconds before at, key, kind, reason, workspace, channel, ts], …]
, upto int8 not null                     -- bytes of all batches up to this one
);

-- The Socket Mode connections of each ingest process (agent.announce_sockets).
create table agent.socket
( name text not null primary key         -- of the process
, app_id text not null
, sockets int4 not null                  -- open, or opening
, seen_at timestamptz not null
, others int4                            -- the app's connections that are not ours, as Slack said last
, told_at timestamptz                    -- when it did
, since timestamptz                      -- since when each of our processes was told of others
);

-- The workers that are running, as they last said, and the kinds each of them handles.
create table agent.worker
( name text not null primary key
, kinds text[] not null
, version text not null
, started_at timestamptz not null default clock_timestamp()
, seen_at timestamptz not null default clock_timestamp()
);

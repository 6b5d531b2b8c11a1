-- What was last measured of the queue, for everybody who shows it. One row; who measures next locks it.
create table agent.measurement
( only_row boolean not null primary key default true check (only_row)
, due timestamptz not null default '-infinity'   -- when it is measured again
, measured_at timestamptz
, figures jsonb not null default '{}'
);
insert into agent.measurement default values;

-- A worker says what its clock shows, so that one that is off is found.
alter table agent.worker add column clock_offset interval;   -- its clock less the database's
drop function if exists agent.announce_worker(text, text[], text);

-- Workspaces that move here. Their events wait in lanes 60 to 63, which no claim reads.
create table agent.arriving
( workspace text not null primary key
, since timestamptz not null default clock_timestamp()
);

-- Rows that are locked where one transaction at a time does something (agent.take_turn). Advisory locks would do, but any
-- login can hold those for ever. A row is locked, never changed, so it leaves no dead rows.
create table agent.turn (name text not null primary key);

-- Keys of sessions are drawn at random: nobody can lock them beforehand.
drop sequence agent.worker_session;

-- An event that was asked to end as it ran, and was given back without an attempt: nothing found it.
update agent.event set attempts = 1 where cancelled_by is not null and claimed_by is null and attempts = 0;

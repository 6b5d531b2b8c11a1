-- The one clock of the queue: what every function means by now. Time goes on within a transaction.
create or replace function agent.clock() returns timestamptz
language sql volatile parallel safe
return pg_catalog.clock_timestamp();

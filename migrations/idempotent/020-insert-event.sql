-- Inserts a Slack event: the whole envelope or a bare event. Returns its id; of a duplicate, the id of the event that is
-- there already, whether it is queued, running or in history.
create or replace function agent.insert_event(_event jsonb) returns int8
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$ select id from agent.store_event(_event, null, null) $$;

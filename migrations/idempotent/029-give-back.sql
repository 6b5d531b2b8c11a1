-- Ends claims whose attempts are not counted; events that were asked to be cancelled meanwhile end here. The caller holds the
-- locks. Returns the ids of those that it could settle.
create or replace function agent.give_back(_held int8[], _pauses interval[] default null) returns int8[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _cancelled int8[] := array(select id from agent.event where id = any(_held) and cancelled_by is not null);
    _settled int8[] := agent.hold_endings(_held, _cancelled, 'cancelled');
begin
    perform agent.archive_events(array(select id from unnest(_settled) as id where id = any(_cancelled)), 'cancelled', 'cancelled while running');
    perform agent.return_events(_settled, false, _held, _pauses);
    return _settled;
end
$$;

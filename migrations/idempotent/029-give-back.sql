-- Ends claims whose attempts are not counted; events that were asked to be cancelled meanwhile end here.
create or replace function agent.give_back(_held int8[], _pauses interval[] default null) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform agent.archive_events(array(select id from agent.event where id = any(_held) and cancelled_by is not null)
        , 'cancelled', 'cancelled while running');
    perform agent.return_events(_held, false, _held, _pauses);
end
$$;

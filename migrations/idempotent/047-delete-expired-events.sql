-- Moves to history, as expired, the events that had _max_attempts attempts or more (their own maximum, where they have one)
-- and those that have been visible and unclaimed for longer than _max_vt_age. Never a live lease, a scheduled event or one
-- of a paused kind. Returns how many.
create or replace function agent.delete_expired_events(_max_attempts int default 3, _max_vt_age interval default '1h') returns int8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _expired int8 := 0;
    _batch int4;
begin
    loop
        _batch := agent.sweep_events(_max_attempts, _max_vt_age);
        _expired := _expired + _batch;
        exit when _batch = 0;
    end loop;
    return _expired;
end
$$;

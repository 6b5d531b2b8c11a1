-- Moves to history, as expired, the events that had _max_attempts attempts or more (their own maximum or their kind's, where they
-- have one) and those that have been visible and unclaimed for longer than _max_vt_age. Never a live lease, a scheduled event or
-- one of a paused kind. Returns how many. Stops after about a second, or half the statement timeout, so that what it did is kept
-- and inserts into the groups it swept do not wait for long: where there is much, call it again until it returns 0.
create or replace function agent.delete_expired_events(_max_attempts int default 3, _max_vt_age interval default '1h') returns int8
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _timeout interval := current_setting('statement_timeout');
    _until timestamptz := clock_timestamp() + least(interval '1 second', case when _timeout > interval '0' then _timeout / 2 end);
    _expired int8 := 0;
    _batch int4;
begin
    loop
        _batch := agent.sweep_events(_max_attempts, _max_vt_age, _limit => 500, _mend => _expired = 0);
        _expired := _expired + _batch;
        exit when _batch = 0 or clock_timestamp() >= _until;
    end loop;
    return _expired;
end
$$;

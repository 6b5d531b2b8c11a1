-- Fires a schedule for the times given and sets its next one, if its next firing is still _due: of all the workers that try, one
-- does. Returns how many jobs it enqueued; each carries its scheduled time, by which it is known.
create or replace function agent.fire_cron(_name text, _due timestamptz, _times timestamptz[], _next_at timestamptz) returns int4
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _cron agent.cron;
    _time timestamptz;
    _fired int4 := 0;
begin
    update agent.cron set next_at = _next_at, last_at = agent.clock() where name = _name and next_at = _due and not paused returning * into _cron;
    if not found then
        return 0;
    end if;
    foreach _time in array _times loop
        perform agent.enqueue_job(agent.job_from_json(jsonb_build_object('kind', _cron.kind, 'enqueued_by', 'cron:' || _name
            , 'item_key', 'cron:' || _name || ':' || to_char(_time at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
            , 'payload', _cron.payload || jsonb_build_object('cron', _name, 'scheduled_at', _time))), 'skip');
        _fired := _fired + 1;
    end loop;
    return _fired;
end
$$;

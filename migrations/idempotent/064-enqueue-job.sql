-- Adds a job, or finds the one that is pending under its dedupe key (or live under its item key). What becomes of that one:
-- skip leaves it as it is, replace gives it the new payload and time, earliest the earlier of both times.
create or replace function agent.enqueue_job(_new agent.event, _on_duplicate text, out id int8, out duplicate boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _twin agent.event;
begin
    if _on_duplicate not in ('skip', 'replace', 'earliest') then
        raise invalid_parameter_value using message = format('on a duplicate: skip, replace or earliest, not %L', _on_duplicate);
    end if;
    loop
        -- For update from the start: adding locks the group's head for key share, and two that raise that lock deadlock.
        if _on_duplicate <> 'skip' then
            perform agent.hold_group(_new.group_key);
        end if;
        select added.id, added.duplicate into id, duplicate from agent.add_event(_new, true, false) as added;
        exit when not duplicate or _on_duplicate = 'skip';
        perform agent.hold_group((select t.group_key from agent.event as t where t.id = enqueue_job.id));
        select e.* into _twin from agent.event as e where e.id = enqueue_job.id for update;
        -- Gone, or claimed meanwhile, which frees its dedupe key: look again.
        continue when not found or (_twin.claimed <> '{}' and (_twin.item_key = _new.item_key) is not true);
        -- One that is running, or waits for its children or an answer, stays as it is.
        if isfinite(_twin.vt) and (_twin.claimed_by is null or _twin.vt <= agent.clock()) then
            perform agent.move_event(_twin, case when _on_duplicate = 'earliest' then least(_new.vt, _twin.vt) else _new.vt end
                , case when _on_duplicate = 'replace' then _new.event else _twin.event end
                , case when _on_duplicate = 'replace' then 'replaced' else 'rescheduled' end, coalesce(_new.enqueued_by, session_user));
        end if;
        exit;
    end loop;
end
$$;

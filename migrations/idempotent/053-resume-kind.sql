-- Resumes a paused kind and wakes the workers.
create or replace function agent.resume_kind(_kind text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    update agent.kind set paused = false, paused_at = null, paused_by = null where kind = _kind and paused;
    perform agent.sweep_groups();
    perform pg_notify('agent_event', '');
end
$$;

-- Enqueues a batch of jobs, a JSON array of what enqueue takes, in one transaction; answers each by its place.
create or replace function agent.enqueue_jobs(_jobs jsonb, _on_duplicate text default 'skip')
returns table (ordinal int4, id int8, duplicate boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    _given record;
begin
    -- Sorted, so that batches never deadlock.
    for _given in
        select g.job, g.nth from jsonb_array_elements(_jobs) with ordinality as g (job, nth)
        order by g.job ->> 'group_key', g.job ->> 'item_key', g.job ->> 'dedupe_key'
    loop
        ordinal := _given.nth;
        select added.id, added.duplicate into id, duplicate
        from agent.enqueue_job(agent.job_from_json(_given.job), _on_duplicate) as added;
        return next;
    end loop;
end
$$;

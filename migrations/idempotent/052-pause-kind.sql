-- Pauses a kind: its waiting events are neither claimed nor expired until it is resumed; running ones end as they would.
-- They do not hold up other kinds of their groups.
create or replace function agent.pause_kind(_kind text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    -- A kind that is new: inserts of its first events step over this transaction, and it waits for theirs.
    if not exists (select from agent.kind where kind = _kind) then
        perform pg_advisory_xact_lock(hashtextextended('agent.kind ' || _kind, 0));
    end if;
    insert into agent.kind (kind, paused, paused_at, paused_by) values (_kind, true, agent.clock(), session_user)
    on conflict (kind) do update set paused = true, paused_at = excluded.paused_at, paused_by = excluded.paused_by where not kind.paused;
    perform agent.sweep_groups();
end
$$;

-- After a group's lease lapsed: its other held members go back unspent and their claims no longer stand, so that the head
-- is tried alone and an event that kills its worker exhausts alone. The caller has locked the heads.
create or replace function agent.fence_members(_group_keys text[], _now timestamptz) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    update agent.event set claimed_by = null, heartbeat_at = null, vt = _now
    -- One that was asked to be cancelled keeps its attempt, by which the sweep finds it.
    , attempts = case when cancelled_by is null then greatest(attempts - 1, 0) else attempts end
    where group_key = any(_group_keys) and not head and claimed_by is not null;
end;

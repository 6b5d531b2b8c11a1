-- After a group's lease lapsed: its other held members go back unspent and their claims no longer stand, so that the head
-- is tried alone and an event that kills its worker exhausts alone. The caller has locked the heads.
create or replace function agent.fence_members(_group_keys text[], _now timestamptz) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp
begin atomic
    update agent.event set claimed_by = null, heartbeat_at = null, attempts = greatest(attempts - 1, 0), vt = _now
    where group_key = any(_group_keys) and not head and (claimed_by is not null);
end;

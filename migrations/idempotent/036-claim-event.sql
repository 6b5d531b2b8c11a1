-- The moments of an event's claims with one more: of the last 100 alone. They keep their subscripts, so that the upper bound is
-- the number of the claim, by which settles are fenced, whatever was dropped.
create or replace function agent.last_claims(_claimed timestamptz[], _now timestamptz) returns timestamptz[]
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    _claim int4 := array_upper(_claimed, 1) + 1;
    _kept timestamptz[] := array_fill(_now, array[100], array[_claim - 99]);
begin
    _kept[_claim - 99 : _claim - 1] := _claimed[_claim - 99 : _claim - 1];
    return _kept;
end
$$;

-- Claims one visible event, chosen at random among the lanes, of any kind that is not paused: one row as it is after the
-- claim, or none. Of a group it is the head, alone. Sends no heartbeats: the claim stands until its vt.
-- Here as elsewhere, plans made while the queue is short must be right when it is long (enable_seqscan), and what must be
-- scanned nevertheless looks so dear on paper that it would be compiled at each call (jit).
create or replace function agent.claim_event(_max_attempts int4 default 3, _invisible_for interval default '10m') returns setof agent.event
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    _now timestamptz := agent.clock();
    _held record;
begin
    select * into _held
    from agent.hold_heads(array(select kind from agent.kind where not paused), 1, coalesce(_max_attempts, 0), _now, null);
    if _held.lapsed[1] and _held.group_keys[1] is not null and agent.fence_members(_held.group_keys[1:1], _now) <> '{}' then
        return; -- another transaction has a member locked
    end if;
    return query
    update agent.event
    set attempts = attempts + 1, vt = _now + _invisible_for, claimed = case when cardinality(claimed) < 100 then claimed || _now else agent.last_claims(claimed, _now) end, heartbeat_at = null, retrying = false
    , changes = agent.after_lapse(changes, claimed_by, vt)
    , claimed_by = coalesce(nullif(current_setting('application_name'), ''), session_user)
    where ctid = _held.places[1] returning *;
end
$$;

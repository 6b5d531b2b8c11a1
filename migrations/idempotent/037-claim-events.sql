-- Claims up to _limit visible events of the kinds given. A group comes whole: its head and up to 100 visible members in
-- order, the last one also beyond _limit; one whose lease lapsed comes as its head alone. prior_vt is a head's vt
-- before the claim: the highest one seen in a (lane, kind) is where the claimant's cursor there may start next time.
-- Steps over locked rows. Where PostgreSQL waits all the same, as a row is being updated at that moment, it gives up after 100 ms
-- (40001: claim again).
-- _cursors: one for each lane and kind, at lane * cardinality(_kinds) + position.
create or replace function agent.claim_events
( _kinds text[], _limit int4 default 100, _max_attempts int4 default 3, _invisible_for interval default '10m'
, _claimed_by text default session_user, _cursors timestamptz[] default null
) returns table
( id int8, kind text, lane int2, event_ts timestamptz, attempts int4, claim int4, vt timestamptz, prior_vt timestamptz, event jsonb, item_key text
, group_key text, max_attempts int4, enqueued_at timestamptz, errors jsonb, notes jsonb, traceparent text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set lock_timeout = '100ms'
as $$
#variable_conflict use_column
declare
    _now timestamptz := agent.clock();
    _held record;
begin
    begin
        select places[1:_limit] as places, vts, group_keys, lapsed into _held from agent.hold_heads(_kinds, _limit, _max_attempts, _now, _cursors);
        if _held.places is null then
            return;
        end if;
        if array_remove(_held.group_keys, null) <> '{}' then
            select * into _held from agent.hold_members(_held.places, _held.vts, _held.group_keys, _held.lapsed, _kinds, _limit, _max_attempts, _now);
        end if;
        return query
        update agent.event as e
        set attempts = e.attempts + 1, vt = _now + _invisible_for, claimed_by = _claimed_by, heartbeat_at = _now
        , claimed = case when cardinality(e.claimed) < 100 then e.claimed || _now else agent.last_claims(e.claimed, _now) end
        , retrying = false
        from unnest(_held.places, _held.vts) as held (place, vt)
        where e.ctid = held.place
        returning e.id, e.kind, e.lane, e.event_ts, e.attempts, array_upper(e.claimed, 1), e.vt, held.vt
        , e.event, e.item_key, e.group_key, e.max_attempts, e.enqueued_at, e.errors, e.notes, e.traceparent;
    exception when lock_not_available then
        raise serialization_failure using message = 'a row that could be claimed was locked for too long: claim again';
    end;
end
$$;

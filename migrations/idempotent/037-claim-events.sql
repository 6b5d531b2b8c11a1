-- Claims up to _limit visible events of the kinds given. A group comes whole: its head and up to 100 visible members in
-- order, the last one also beyond _limit; one whose lease lapsed comes as its head alone. prior_vt is a head's vt
-- before the claim: the highest one seen in a (lane, kind) is where the claimant's cursor there may start next time.
-- Steps over locked rows. Where PostgreSQL waits all the same, as a row is being updated at that moment, it gives up after 100 ms
-- (40001: claim again).
-- _cursors: one for each lane and kind, at lane * cardinality(_kinds) + position.
-- _member_kinds: the kinds of which a group brings members along, by default _kinds. A worker whose slots for some kinds are taken
-- claims heads of the others alone, and their groups still come in order.
-- _most_bytes: stops before the event whose text would exceed this many bytes, but never before the first. A small event is taken for
-- as large as its row says, so that only large ones are turned into text twice; _limit bounds what small ones come to.
drop function if exists agent.claim_events(text[], int4, int4, interval, text, timestamptz[]);
create or replace function agent.claim_events
( _kinds text[], _limit int4 default 100, _max_attempts int4 default null, _invisible_for interval default '10m'
, _claimed_by text default session_user, _cursors timestamptz[] default null
, _member_kinds text[] default null, _most_bytes int8 default null
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
    _most int4[] := agent.attempts_of(_kinds, _max_attempts);
begin
    begin
        select places[1:_limit] as places, vts, group_keys, lapsed into _held from agent.hold_heads(_kinds, _limit, _max_attempts, _now, _cursors);
        if _held.places is null then
            return;
        end if;
        if array_remove(_held.group_keys, null) <> '{}' then
            select * into _held from agent.hold_members(_held.places, _held.vts, _held.group_keys, _held.lapsed, coalesce(_member_kinds, _kinds), _limit, _max_attempts, _now);
        end if;
        if _most_bytes is not null then
            select array_agg(fitting.place order by fitting.nth) as places, array_agg(fitting.vt order by fitting.nth) as vts into _held
            from (
                select held.place, held.vt, held.nth, body.size, sum(body.size) over (order by held.nth) - body.size as before
                from unnest(_held.places, _held.vts) with ordinality as held (place, vt, nth)
                cross join lateral (
                    select case when pg_column_compression(e.event) is null and pg_column_size(e.event) < 2000 then pg_column_size(e.event) else octet_length(e.event::text) end as size
                    from agent.event as e where e.ctid = held.place
                ) as body
            ) as fitting
            where fitting.nth = 1 or fitting.before + fitting.size <= _most_bytes;
        end if;
        return query
        update agent.event as e
        set attempts = e.attempts + 1, vt = _now + _invisible_for, claimed_by = _claimed_by, heartbeat_at = _now
        , claimed = case when cardinality(e.claimed) < 100 then e.claimed || _now else agent.last_claims(e.claimed, _now) end
        , retrying = false, changes = agent.after_lapse(e.changes, e.claimed_by, e.vt)
        from unnest(_held.places, _held.vts) as held (place, vt)
        where e.ctid = held.place
        returning e.id, e.kind, e.lane, e.event_ts, e.attempts, array_upper(e.claimed, 1), e.vt, held.vt
        , e.event, e.item_key, e.group_key, coalesce(e.max_attempts, _most[array_position(_kinds, e.kind)]), e.enqueued_at, e.errors, e.notes, e.traceparent;
    exception when lock_not_available then
        raise serialization_failure using message = 'a row that could be claimed was locked for too long: claim again';
    end;
end
$$;

-- What to answer to each (id, claim) pair after those in _held have been settled: done; busy, where the claim still
-- stands but could not be locked; else stale.
create or replace function agent.settle_answers(_ids int8[], _claims int4[], _held int8[])
returns table (ordinal int4, answer text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
begin
    if cardinality(_held) = cardinality(_ids) then
        return query select nth::int4, 'done' from generate_series(1, cardinality(_ids)) as nth;
        return;
    end if;
    return query
    select item.nth::int4
    , case when item.id = any(_held) and item.nth = first_value(item.nth) over (partition by item.id order by item.claim desc, item.nth) then 'done'
           when exists (select from agent.event as e where e.id = item.id and e.claimed_by is not null and array_upper(e.claimed, 1) = item.claim)
           and item.id <> all(_held) then 'busy'
           else 'stale' end
    from unnest(_ids, _claims) with ordinality as item (id, claim, nth);
end
$$;

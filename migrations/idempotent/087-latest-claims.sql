-- The ids as given, with null in place of all but one where an id is given with several claims: only the latest can stand, so
-- that what comes along with the others (a result, an error) is not its own.
create or replace function agent.latest_claims(_ids int8[], _claims int4[]) returns int8[]
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if (select count(distinct id) from unnest(_ids) as id) = cardinality(_ids) then
        return _ids;
    end if;
    return array(
        select case when nth = first_value(nth) over (partition by id order by claim desc, nth) then id end
        from unnest(_ids, _claims) with ordinality as given (id, claim, nth) order by nth);
end
$$;

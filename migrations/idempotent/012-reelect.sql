-- Chooses the heads of groups anew: each head steps down and stands again with the other members. The caller has locked the heads.
create or replace function agent.reelect(_group_keys text[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    _group_key text;
begin
    for _group_key in select distinct given from unnest(_group_keys) as given where given is not null order by given loop
        update agent.event set head = false where group_key = _group_key and head;
        perform agent.promote(_group_key);
    end loop;
end
$$;

-- Whether the present head of a group yields to a waiting member: never while it is held; to one of a kind that workers claim
-- where its own is not; else, unless it waits for a retry, to one that is visible earlier.
create or replace function agent.head_yields(_group_key text, _kind text, _vt timestamptz) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    _head record;
    _kinds text[];
begin
    select kind, vt, retrying into _head from agent.event where group_key = _group_key and head and claimed_by is null;
    if not found then
        return false;
    end if;
    if _head.kind <> _kind then
        _kinds := agent.claimable_kinds();
        if (_head.kind = any(_kinds)) <> (_kind = any(_kinds)) then
            return _kind = any(_kinds);
        end if;
    end if;
    return not _head.retrying and _head.vt > _vt;
end
$$;

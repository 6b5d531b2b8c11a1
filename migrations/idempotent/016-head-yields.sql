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

-- Whether a row that enters a group finds a head there, and so is a member. Locks nothing: as its transaction commits, the
-- trigger member_joins looks again. Where two enter an empty group, the second waits for the first at the unique index of heads.
create or replace function agent.enter_group(_group_key text, _kind text, _vt timestamptz) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    return exists (select from agent.event where group_key = _group_key and head);
end
$$;

-- Locks the head of a group for a member that is about to be committed, so that it cannot leave before the election sees the
-- member; false: there is none. For key share, with which any number of members join at once; for update where the head will
-- step down for this one: raising the lock only then could deadlock with another newcomer. Whoever changes a head locks it for
-- update, nothing weaker: an update that has to move a row to another page, or its values out of line, forgets the key share
-- locks taken meanwhile (PostgreSQL 17 and 18 at least).
create or replace function agent.lock_head(_group_key text, _kind text, _vt timestamptz) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    while exists (select from agent.event where group_key = _group_key and head) loop
        if agent.head_yields(_group_key, _kind, _vt) then
            perform from agent.event where group_key = _group_key and head for update;
        else
            perform from agent.event where group_key = _group_key and head for key share;
        end if;
        if found then
            return true;
        end if;
        -- It left, or stepped down, while we waited for it: the next statement sees who came after it.
    end loop;
    return false;
end
$$;

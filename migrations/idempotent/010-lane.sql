-- The lane of a row: a group's own, so that its rows share it, else a random one of 16.
create or replace function agent.lane(_group_key text) returns int2
language sql volatile parallel safe
return coalesce(hashtextextended(_group_key, 0) & 15, floor(random() * 16)::int8)::int2;

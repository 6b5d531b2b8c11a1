-- A key short enough to index: long ones are replaced by their hash.
create or replace function agent.bounded_key(_key text) returns text
language sql immutable parallel safe
return case when length(_key) <= 200 then _key else 'sha256:' || encode(sha256(convert_to(_key, 'UTF8')), 'hex') end;

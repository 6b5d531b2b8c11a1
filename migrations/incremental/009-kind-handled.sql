-- While workers are replaced a kind has none for some seconds: the retirement is remembered, as the silence of a crashed worker is.
alter table agent.kind add column handled_at timestamptz;  -- when a worker that handled it last retired
-- Made anew by the scripts, with other results or parameters.
drop function if exists agent.fence_members(text[], timestamptz);
drop function if exists agent.end_events(int8[], int4[], text[], text, text[], jsonb[]);
drop function if exists agent.give_back(int8[], interval[]);

-- By which operators list what has ended: newest first, of some kinds, groups or dedupe keys.
create index event_hist_kind on agent.event_hist (kind, outcome, finished_at);
create index event_hist_group_key on agent.event_hist (group_key, finished_at) where group_key is not null;
create index event_hist_dedupe_key on agent.event_hist (dedupe_key, finished_at) where dedupe_key is not null;

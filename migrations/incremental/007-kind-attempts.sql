-- The maximum of attempts belongs to an event or to its kind: a sweep judges events that other teams' workers handle.
alter table agent.kind
  add column max_attempts int4 constraint kind_max_attempts_positive check (max_attempts > 0);  -- null: no worker has said
alter table agent.worker add column max_attempts int4;  -- its setting, for events without a maximum of their own
drop function if exists agent.announce_worker(text, text[], text, interval);
drop function if exists agent.sweep_exhausted(int4, int4);
drop function if exists agent.sweep_events(int4, interval, text[], boolean, int4);

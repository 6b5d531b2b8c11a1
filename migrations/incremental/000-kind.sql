-- The kinds of event ever seen. A paused kind is not claimed and not expired; its events wait.
create table agent.kind
( kind text not null primary key check (kind <> '' and length(kind) <= 200)
, paused boolean not null default false
, paused_at timestamptz
, paused_by text
-- null: no worker has said. A sweep needs it for kinds that other teams' workers handle.
, max_attempts int4 constraint kind_max_attempts_positive check (max_attempts > 0)
-- When a worker that handled it last retired: while workers are replaced, a kind has none.
, handled_at timestamptz
-- Commands and interactions wait for no other event of their thread, unless this is set.
, ordered boolean not null default false
);

-- The bands of lanes that a kind uses besides band 0: one for each other priority, and others for
-- workspaces whose backlog would hold up the rest. A transaction that finds no row adds one, and
-- waits for no other that adds the same: a row may be there several times, until a sweep removes
-- the surplus.
create table agent.band
( kind text not null
, band int2 not null constraint band_known check (band between 0 and 11)
-- Its events go there; '': the events of all other workspaces; null: claims look there.
, workspace text
-- Other workspaces' events with an earlier vt were moved out of this band.
, moved_to timestamptz not null default '-infinity'
);
create index band_of on agent.band (kind, workspace, band);

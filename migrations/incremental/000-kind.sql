-- The kinds of event ever seen. A paused kind is not claimed and not expired; its events wait.
create table agent.kind
( kind text not null primary key check (kind <> '' and length(kind) <= 200)
, paused boolean not null default false
, paused_at timestamptz
, paused_by text
);

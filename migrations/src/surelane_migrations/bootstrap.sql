-- The runner's own tables. This runs if the schema or one of the two tables is missing, under the
-- migration's advisory lock and in its transaction. Scripts create every other object.
do $$
begin
    if not exists (select from pg_catalog.pg_namespace where nspname = 'agent') then
        create schema agent;
    end if;
end
$$;

-- The release that the schema is at, and the oldest release whose services work on it.
create table if not exists agent.version
( version text not null
, min_compatible text not null
, constraint both_semantic_and_in_order check
  ( case when version || ' ' || min_compatible || ' '
      ~ '^((0|[1-9]\d{0,8})(\.(0|[1-9]\d{0,8})){2}(rc\d{1,4})? ){2}$'
    then pg_catalog.string_to_array(pg_catalog.split_part(min_compatible, 'rc', 1), '.')::int4[]
      <= pg_catalog.string_to_array(pg_catalog.split_part(version, 'rc', 1), '.')::int4[]
    else false end
  )
);

-- The table has at most one row …
create unique index if not exists version_one_row on agent.version ((true));

-- … and never loses it.
create or replace function agent.refuse_version_removal() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp
as $$
begin
    raise restrict_violation using
        message = 'agent.version always holds one row', hint = 'Update it; to start over, drop schema agent.';
end
$$;

revoke execute on function agent.refuse_version_removal() from public;

create or replace trigger refuse_version_removal before delete or truncate on agent.version
for each statement execute function agent.refuse_version_removal();

-- The applied incremental scripts.
create table if not exists agent.migration
( file_name text not null primary key
, version text not null
, applied_at timestamptz not null default now()
, checksum text not null
, constraint file_name_numbered check (file_name ~ '^\d{3}-[a-z0-9_-]+\.sql$')
, constraint checksum_sha256 check (checksum ~ '^[0-9a-f]{64}$')
);

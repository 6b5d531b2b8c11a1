"""Databases as people and platforms have them, one a row. What a platform's row has is what its documentation states.

None of these is the platform itself: docs/which-postgresql.md says what was never tried there.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """A database that is not ours alone.

    Attributes:
        before: what an administrator did in the database before Surelane was installed. ``{db}`` is its name,
            ``{owner}`` its owner, ``{reader}`` another login.
        after: the same, after it was installed.
        owner: the attributes of the owner's role; empty: those of our tests.
        finds: what the doctor says is wrong there, by check.
    """

    name: str
    before: str = ""
    after: str = ""
    owner: str = ""
    finds: tuple[str, ...] = ()


def every(settings: str, where: str = "database {db}") -> str:
    """Return the statements that set ``name = value``, separated by semicolons."""
    return "".join(f"alter {where} set {each.strip()};" for each in settings.split(";"))


def refused(function: str, returns: str, sqlstate: str) -> str:
    """Let a function of the server fail, as on a platform that lacks it."""
    return (
        f"alter function pg_catalog.{function} rename to gone;"
        f"create function pg_catalog.{function} {returns} language plpgsql as"
        f" $f$ begin raise sqlstate '{sqlstate}' using message = 'not here'; end $f$;"
    )


HIDDEN = "revoke execute on function pg_control_system(), pg_control_checkpoint(), pg_walfile_name(pg_lsn) from public;"
WALFILE = ("pg_walfile_name(pg_lsn)", "returns text")
WATCHED = """
create table public.seen (tag text);
create function public.watch() returns event_trigger language plpgsql security definer set search_path = public as
$f$ begin insert into seen select command_tag from pg_event_trigger_ddl_commands(); notify pgrst; end $f$;
create event trigger ddl_watch on ddl_command_end execute function public.watch();
create function public.dropped() returns event_trigger language plpgsql as
$f$ begin perform 1 from pg_event_trigger_dropped_objects(); end $f$;
create event trigger drop_watch on sql_drop execute function public.dropped();
"""
SHADOWS = """
create function public.now() returns timestamptz language sql as $f$ select timestamptz '1999-01-01' $f$;
create function public.format(text, text) returns text language sql as $f$ select 'shadowed' $f$;
create function public.jsonb_each(jsonb) returns void language sql as $f$ $f$;
"""
GIVEN = "alter default privileges for role {owner} grant all on tables to {reader}" + "".join(
    f"; alter default privileges for role {{owner}} grant {what} to {{reader}}"
    for what in ("execute on functions", "usage on sequences", "usage on schemas")
)
SECURED = """
do $$ declare t record; begin for t in select tablename from pg_tables where schemaname = 'agent' loop
execute format('alter table agent.%I enable row level security', t.tablename); end loop; end $$
"""
UNSEEN = (
    *(
        "row security",
        "sequences",
        "schedules",
        "group heads",
        "claims",
        "unknown claims",
        "hands",
        "limit slots",
    ),
    "history",
)
OWNERS = "role {owner} in database {db}"
MANAGED = "login createrole createdb"

PROFILES = (
    Profile("plain"),
    Profile("serializable", every("default_transaction_isolation = serializable; default_transaction_deferrable = on")),
    Profile(
        "repeatable read for the services",
        "".join(
            every("default_transaction_isolation = 'repeatable read'", f"role surelane_{each} in database {{db}}")
            for each in ("ingest", "worker", "operator")
        ),
    ),
    Profile("strings not standard", every("standard_conforming_strings = off; escape_string_warning = off")),
    Profile("strings not standard, later", after=every("standard_conforming_strings = off")),
    Profile("other zone", every("timezone = 'Europe/Berlin'; datestyle = 'SQL, DMY'; intervalstyle = sql_standard")),
    Profile(
        "other texts",
        every("bytea_output = escape; quote_all_identifiers = on; extra_float_digits = -15; array_nulls = off")
        + every("transform_null_equals = on; lc_messages = 'C'; client_min_messages = error; xmloption = document"),
    ),
    Profile(
        "short timeouts",
        every("statement_timeout = 300; lock_timeout = 50; transaction_timeout = 700; idle_session_timeout = 2000"),
    ),
    Profile(
        "other plans",
        every("enable_indexscan = off; enable_hashjoin = off; plan_cache_mode = force_custom_plan; jit_above_cost = 0")
        + every("check_function_bodies = off; default_toast_compression = pglz; row_security = on"),
    ),
    Profile("shadowing path", SHADOWS + every("search_path = public, pg_catalog")),
    Profile("row security", after=SECURED, finds=UNSEEN),
    Profile("publication of all tables", "create publication everything for all tables"),
    Profile(
        "change capture",
        "create publication debezium for all tables",
        "select pg_create_logical_replication_slot('{db}', 'pgoutput')",
    ),
    Profile("default privileges", GIVEN),
    Profile("event triggers", WATCHED),
    # Amazon RDS: rds_superuser is no superuser; the master user is its member and may create roles.
    Profile("rds", "grant pg_monitor, pg_signal_backend to {owner}", owner=MANAGED),
    # Aurora has no WAL files: such functions are not supported.
    Profile("aurora", refused(*WALFILE, "0A000"), owner=MANAGED, finds=("timeline",)),
    # Cloud SQL and AlloyDB: cloudsqlsuperuser and alloydbsuperuser are no superusers, and may not read files.
    Profile("cloud sql", HIDDEN, owner=MANAGED, finds=("timeline",)),
    # Azure: azure_pg_admin is no superuser; extensions must be allowed; errors of its own.
    Profile(
        "azure",
        refused(*WALFILE, "58P01") + "revoke create on schema public from public",
        owner=MANAGED,
        finds=("timeline",),
    ),
    # Supabase: postgres goes past row security and is no superuser; extensions have a schema; triggers watch the DDL.
    Profile(
        "supabase",
        "create schema extensions; create schema auth;" + WATCHED + GIVEN + ";"
        + every("search_path = \"$user\", public, extensions", OWNERS),
        owner=f"{MANAGED} bypassrls",
    ),
    # Neon: neon_superuser goes past row security, and may replicate.
    Profile(
        "neon",
        "create schema neon; grant pg_read_all_data, pg_write_all_data to {owner}",
        owner=f"{MANAGED} bypassrls replication",
    ),
    # Heroku, Render: one role, which may create none.
    Profile("heroku", "revoke all on schema public from public", owner="login nocreaterole nocreatedb"),
    Profile("little memory", every("temp_file_limit = 0; work_mem = '64kB'; maintenance_work_mem = '64kB'")),
    Profile("views for dumps alone", every("restrict_nonsystem_relation_kind = 'view, foreign-table'")),
    Profile(
        "hasty owner",
        every("statement_timeout = 1; idle_in_transaction_session_timeout = 1; search_path = ''", OWNERS),
    ),
    # Others answer an internal error, or have no such function.
    Profile("other errors", refused(*WALFILE, "XX000"), finds=("timeline",)),
)  # fmt: skip

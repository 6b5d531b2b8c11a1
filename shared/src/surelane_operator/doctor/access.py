"""Check the schema's version and the roles' rights."""

from collections.abc import Sequence

import asyncpg

from surelane import __version__
from surelane.calls import Connection
from surelane_operator.doctor.finding import Finding, Level, ok
from surelane_service.compatibility import unfit

MIGRATE = "run: python -m surelane_migrations apply"
GRANT = f"{MIGRATE} --again"
_CALLS = {"agent_ingest": "insert_events", "agent_worker": "claim_events", "agent_operator": "list_jobs"}
"""Each role, and a function that its services must be able to call."""

_GRANTS = """
select role, to_regrole(role) is not null as there
, to_regrole(role) is not null and exists (
    select from pg_proc where pronamespace = to_regnamespace('agent') and proname = function
    and has_function_privilege(to_regrole(role)::oid, oid, 'execute')) as may
from unnest($1::text[], $2::text[]) as wanted (role, function)
"""
_OPEN_TO_ALL = """
select proname from pg_proc where pronamespace = to_regnamespace('agent')
and exists (select from aclexplode(coalesce(proacl, acldefault('f', proowner))) as g where g.grantee = 0) order by 1
"""


async def schema(connection: Connection) -> Sequence[Finding]:
    """Check that the schema exists and serves this version."""
    try:
        row = await connection.fetchrow("select version, min_compatible from agent.schema_version()")
    except (asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError):
        row = None
    if row is None:
        return [Finding("schema", Level.PROBLEM, "the database has no schema agent", MIGRATE)]
    reason = unfit(row["version"], row["min_compatible"])
    if reason is not None:
        return [Finding("schema", Level.PROBLEM, reason, f"{MIGRATE}, or use a matching version of Surelane")]
    server = await connection.fetchval("show server_version")
    return [ok("schema", f"version {row['version']} serves {__version__}; PostgreSQL {server}")]


async def roles(connection: Connection) -> Sequence[Finding]:
    """Check that the roles exist and have their rights, and that PUBLIC has none."""
    rows = await connection.fetch(_GRANTS, list(_CALLS), list(_CALLS.values()))
    missing = [row["role"] for row in rows if not row["there"]]
    idle = [row["role"] for row in rows if row["there"] and not row["may"]]
    findings = []
    if missing:
        advice = f"as an administrator: create role {missing[0]} nologin; then {GRANT}"
        findings.append(
            Finding("roles", Level.PROBLEM, f"these roles are missing: {', '.join(missing)}", advice)
        )
    if idle:
        findings.append(
            Finding("roles", Level.PROBLEM, f"these roles lack their rights: {', '.join(idle)}", GRANT)
        )
    public = [row["proname"] for row in await connection.fetch(_OPEN_TO_ALL)]
    if public:
        findings.append(Finding("roles", Level.WARNING, f"every role may call: {', '.join(public)}", GRANT))
    return findings or [ok("roles", f"{', '.join(_CALLS)} have their rights")]

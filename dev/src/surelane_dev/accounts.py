"""Create the database's accounts: the owner, the group roles, and one login per service.

In production an administrator does this once: Compose and Kubernetes with scripts, a managed service in its own way.
"""

from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

from surelane.calls import Connection

OWNER = "surelane"
GROUPS = ("agent_ingest", "agent_worker", "agent_operator", "agent_producer")
LOGINS = {group.replace("agent", "surelane"): group for group in GROUPS}
PASSWORD = "surelane"  # noqa: S105 - of development and test servers only; ignored where the server trusts


async def prepare(superuser: str, database: str) -> None:
    """Create the missing roles and the owner's database on the server of a superuser's URI."""
    admin = await asyncpg.connect(superuser)
    try:
        await create_roles(admin)
        if not await admin.fetchval("select exists (select from pg_database where datname = $1)", database):
            await admin.execute(f'create database "{database}" owner {OWNER}')
    finally:
        await admin.close()


async def create_roles(admin: Connection) -> None:
    """Create the missing roles as a superuser. Leave existing ones unchanged."""
    await _create_role(admin, OWNER, f"login createrole password '{PASSWORD}'")
    for group in GROUPS:
        await _create_role(admin, group, "nologin")
        await admin.execute(f"grant {group} to {OWNER} with admin option")
    await admin.execute(f"grant pg_read_all_stats to {OWNER}")  # to name the session that holds back vacuum
    for login, group in LOGINS.items():
        await _create_role(admin, login, f"login password '{PASSWORD}'")
        await admin.execute(f"grant {group} to {login}")


async def _create_role(admin: Connection, role: str, options: str) -> None:
    """Create a role. Roles belong to the whole server, so another run may create the same one at the same moment."""
    if await admin.fetchval("select exists (select from pg_roles where rolname = $1)", role):
        return
    try:
        await admin.execute(f"create role {role} {options}")
    except (asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
        return


def uri_of(uri: str, *, role: str, database: str) -> str:
    """Return the URI of the same server for another role and database."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    password = f":{PASSWORD}" if host else ""  # a Unix socket needs no password: only its owner can reach it
    return urlunsplit(parts._replace(netloc=f"{role}{password}@{host}", path=f"/{quote(database)}"))

"""Run the checks, one after the other."""

from collections.abc import Awaitable, Callable, Sequence

from surelane.calls import Connection, translating
from surelane.errors import Forbidden, NotMeasured
from surelane_operator.doctor.access import roles, schema
from surelane_operator.doctor.finding import Finding, Level
from surelane_operator.doctor.history import retention
from surelane_operator.doctor.queue import backlog, vacuum, workers
from surelane_operator.doctor.server import clock, connected, dead_rows, indexes, notifications
from surelane_operator.operations import Operations

Check = Callable[[], Awaitable[Sequence[Finding]]]


async def examine_at(dsn: str) -> list[Finding]:
    """Run all checks on a connection of their own.

    Raises:
        DatabaseUnavailable, DatabaseRefused: there is no connection.
    """
    async with connected(dsn) as connection:
        return await examine(dsn, connection)


async def examine(dsn: str, connection: Connection) -> list[Finding]:
    """Run all checks and return their findings. Without a usable schema, its contents are not checked.

    Args:
        dsn: the database's URI, for a second connection that sends a notification to the first.
        connection: the connection of a service's role, or of an operator's.
    """
    operations = Operations(connection)
    found = await _answered("schema", lambda: schema(connection))
    if not any(finding.level is Level.PROBLEM for finding in found):
        found += await _answered("roles", lambda: roles(connection))
    found += await _answered("notifications", lambda: notifications(dsn, connection))
    found += await _answered("clock", lambda: clock(connection))
    if any(finding.level is Level.PROBLEM for finding in found if finding.check == "schema"):
        return found
    for name, check in (
        ("dead rows", lambda: dead_rows(connection)),
        ("indexes", lambda: indexes(connection)),
        ("vacuum", lambda: vacuum(operations)),
        ("workers", lambda: workers(operations)),
        ("queue", lambda: backlog(operations)),
        ("history", lambda: retention(connection)),
    ):
        found += await _answered(name, check)
    return found


async def _answered(name: str, check: Check) -> list[Finding]:
    """Run a check. If this role may not run it, the finding says so."""
    try:
        with translating():
            return list(await check())
    except NotMeasured as error:
        return [Finding(name, Level.UNKNOWN, str(error), "run it again in a moment")]
    except Forbidden as error:
        return [
            Finding(
                name,
                Level.UNKNOWN,
                f"this role may not see it: {error}",
                "connect as a member of agent_operator",
            )
        ]

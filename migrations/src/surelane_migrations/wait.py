"""Wait until the schema serves this release, for init containers. Never migrate."""

import asyncio
import time
from datetime import timedelta

from surelane_migrations.database import connected, read_version
from surelane_migrations.errors import IncompatibleError, MigrationError, SettingsError, WaitTimedOutError
from surelane_migrations.runner import Report, silent
from surelane_migrations.version import RELEASE, Version

_PAUSE = 1.0


async def wait_for_schema(
    dsn: str, *, timeout: timedelta, release: Version = RELEASE, report: Report = silent
) -> None:
    """Return once the schema is at ``release`` or newer. The database need not be there yet.

    Raises:
        IncompatibleError: the schema no longer serves this release, and waiting would not help.
        SettingsError: ``dsn`` cannot be read.
        WaitTimedOutError: the time is up; the message says why services cannot start yet.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    reported = None
    while (reason := await _reason_to_wait(dsn, release, deadline)) is not None:
        if reason != reported:
            report(f"waiting: {reason}")
            reported = reason
        left = deadline - time.monotonic()
        if left <= 0:
            raise WaitTimedOutError(
                f"gave up after {timeout.total_seconds():g} s: {reason}. The migration has to be applied "
                "first; see what it says."
            )
        await asyncio.sleep(min(_PAUSE, left))


async def _reason_to_wait(dsn: str, release: Version, deadline: float) -> str | None:
    """Return why services of ``release`` cannot start yet; ``None`` if they can."""
    try:
        async with connected(dsn, answers_within=max(1.0, deadline - time.monotonic())) as connection:
            found = await read_version(connection)
    except SettingsError:
        raise
    except MigrationError as error:
        return str(error)
    if found is None:
        return "there is no schema yet"
    if found.min_compatible > release:
        raise IncompatibleError(
            f"the schema is at {found.version} and serves {found.min_compatible} and later; this is "
            f"{release}. Deploy a later one."
        )
    return f"the schema is at {found.version}, before {release}" if found.version < release else None

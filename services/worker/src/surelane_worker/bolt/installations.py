"""The installations of the worker for Bolt apps: ``AsyncApp(installation_store=installations.asynchronous)``.

An app is made when its module is imported, before the worker has a database. So the stores take the installations of
the worker that runs the attempt.
"""

from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from surelane_service.installation_store import AsyncInstallations, SyncInstallations
from surelane_service.installations import Installations, Owner, Stored
from surelane_worker.bolt.attempt import Attempt, current
from surelane_worker.handling.context import attempt_of
from surelane_worker.slack.client import SentenceError

Result = TypeVar("Result")


class NoInstallationsError(SentenceError):
    """Installs are off, or no event is being handled: set SLACK_CLIENT_ID and SLACK_CLIENT_SECRET."""


def _attempt() -> Attempt:
    attempt = current.get()
    if attempt is None or attempt_of(attempt.ctx).services.installs is None:
        raise NoInstallationsError
    return attempt


class _OfAttempt:
    """The installations of the attempt that runs at the call."""

    def __getattr__(self, name: str) -> Any:
        installs = attempt_of(_attempt().ctx).services.installs
        return getattr(installs and installs.installations, name)


async def _find(owner: Owner, user_id: str | None) -> dict[str, Stored]:
    installs = attempt_of(_attempt().ctx).services.installs
    return {} if installs is None else dict(await installs.find(owner, user_id))


class _Synchronous(SyncInstallations):
    """Calls the worker's event loop from the thread of a listener."""

    def __init__(self, store: AsyncInstallations) -> None:
        self._store = store

    def _wait(self, call: Coroutine[Any, Any, Result]) -> Result:
        return _attempt().ctx.run(call)


asynchronous = AsyncInstallations(cast("Installations", _OfAttempt()), _find)
"""For an ``AsyncApp``."""
synchronous = _Synchronous(asynchronous)
"""For an ``App``."""

"""The installations of the worker for Bolt apps: ``AsyncApp(installation_store=installations.asynchronous)``.

An app is made when its module is imported, before the worker has a database. So the stores take the installations of
the worker that runs the attempt.
"""

from collections.abc import Coroutine
from typing import Any, cast

from surelane_bolt.attempt import current
from surelane_bolt.installation_store import AsyncInstallations, SyncInstallations
from surelane_service.installations import Installations, Owner, Stored
from surelane_worker.handling.context import Context, attempt_of
from surelane_worker.slack.client import SentenceError
from surelane_worker.slack.tokens import Refresher


class NoInstallationsError(SentenceError):
    """Installs are off, or no event is being handled: set SLACK_CLIENT_ID and SLACK_CLIENT_SECRET."""


def _installs() -> tuple[Context, Refresher]:
    attempt = current.get()
    installs = None if attempt is None else attempt_of(attempt.ctx).services.installs
    if attempt is None or installs is None:
        raise NoInstallationsError
    return attempt.ctx, installs


class _OfAttempt:
    """The installations of the attempt that runs at the call."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_installs()[1].installations, name)


async def _find(owner: Owner, user_id: str | None) -> dict[str, Stored]:
    return dict(await _installs()[1].find(owner, user_id))


def _wait(call: Coroutine[Any, Any, Any]) -> Any:
    """Wait for the worker's event loop in the thread of a listener."""
    return _installs()[0].run(call)


asynchronous = AsyncInstallations(cast("Installations", _OfAttempt()), _find)
"""For an ``AsyncApp``."""
synchronous = SyncInstallations(asynchronous, _wait)
"""For an ``App``."""

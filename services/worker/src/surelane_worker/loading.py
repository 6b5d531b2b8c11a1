"""Load the handlers that ``SURELANE_HANDLERS`` names, and warn of those whose events can never arrive."""

import importlib
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from surelane_service.logs import get_logger
from surelane_worker.handling.handler import HandlersError
from surelane_worker.handling.registry import Handlers, registered_in
from surelane_worker.handling.routes import MESSAGES, doubt

SETTING = "SURELANE_HANDLERS"

_log = get_logger(__name__)


def load_handlers(path: str, adapt: Callable[[object], object] = lambda found: found) -> Handlers:
    """Import ``module:attribute``. Modules are found in the working directory too.

    Args:
        path: what to import.
        adapt: makes handlers of an object that is none, such as another framework's app.

    Raises:
        HandlersError: it does not name a :class:`Handlers` with at least one handler, or the import failed.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise HandlersError(f"{SETTING}={path!r}: write module:attribute, such as my_bot:handlers")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except HandlersError:
        raise
    except Exception as error:
        raise HandlersError(
            f"{SETTING}: cannot import {module_name}: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise HandlersError(f"{SETTING}: {module_name} has no attribute {attribute!r}")
    found = adapt(found)
    if not isinstance(found, Handlers):
        raise HandlersError(f"{SETTING}: {path} is a {type(found).__name__}, not a surelane_worker.Handlers")
    if not registered_in(found).all():
        raise HandlersError(f"{SETTING}: {path} has no handlers: register one with @handlers.on(...)")
    return found


def warn_of_doubts(kinds: Collection[str], taken: Collection[str] | None) -> None:
    """Log the kinds whose events can never arrive.

    Args:
        kinds: the kinds that have handlers.
        taken: the event types that ingest takes; ``None`` if they are not known here.
    """
    doubts = {kind: reason for kind in sorted(kinds) if (reason := doubt(kind, taken))}
    arriving = set(kinds) - doubts.keys()
    for kind, reason in doubts.items():
        # A route for all messages announces their five kinds. An app subscribes to few of them.
        if not (kind in MESSAGES and arriving.intersection(MESSAGES)):
            _log.warning("a handler's events can never arrive", kind=kind, reason=reason)

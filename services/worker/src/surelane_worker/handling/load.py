"""Finds the handlers that ``SURELANE_HANDLERS`` names."""

import importlib
import sys
from pathlib import Path

from surelane_worker.handling.registry import Handlers, HandlersError

SETTING = "SURELANE_HANDLERS"


def load_handlers(path: str) -> Handlers:
    """Imports ``module:attribute``; modules in the working directory are found.

    Raises:
        HandlersError: it does not name a :class:`Handlers` with at least one handler, or importing it failed.
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
    if not isinstance(found, Handlers):
        raise HandlersError(f"{SETTING}: {path} is a {type(found).__name__}, not a surelane_worker.Handlers")
    if not found.all():
        raise HandlersError(f"{SETTING}: {path} has no handlers: register one with @handlers.on(...)")
    return found

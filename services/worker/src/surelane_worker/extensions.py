"""Extensions of the worker: installed packages that an entry point names.

An extension makes handlers of what ``SURELANE_HANDLERS`` names, where that is not a :class:`Handlers`. Its entry point
of the group ``surelane.handlers`` names an :class:`Adapt`. The worker never imports an extension by its name.
"""

from importlib.metadata import entry_points
from typing import Protocol

from surelane_worker.handling.registry import Handlers

GROUP = "surelane.handlers"
KNOWN = {"slack_bolt": "surelane-bolt"}
"""The extension for the objects of a library, by the library's module. It may not be installed."""


class Adapt(Protocol):
    """What an entry point names. It reads its own settings from the environment."""

    def __call__(self, found: object, /) -> Handlers | None:
        """Make handlers of an object, or return ``None`` where the object is not for this extension.

        Raises:
            HandlersError: the object is for this extension, and has no usable handlers.
            SettingsError: the extension's settings cannot be used.
        """


def adapted(found: object) -> Handlers | None:
    """Return the handlers that an installed extension makes of an object, or ``None`` where no extension does."""
    for entry in entry_points(group=GROUP):
        adapt: Adapt = entry.load()
        if (handlers := adapt(found)) is not None:
            return handlers
    return None


def extension_for(found: object) -> str | None:
    """Return the name of the package that makes handlers of such an object, if one is known."""
    libraries = {sort.__module__.partition(".")[0] for sort in type(found).__mro__}
    return next((package for library, package in KNOWN.items() if library in libraries), None)

"""Extensions of the worker: installed packages that an entry point names.

The entry point of the group ``surelane.handlers`` names an :class:`Extension`. The worker never imports an extension by
its name. An extension reads its own settings from the environment.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points

from surelane.errors import SettingsError
from surelane_worker.handling.registry import Handlers
from surelane_worker.worker_settings import WorkerSettings

GROUP = "surelane.handlers"
LIBRARIES = {"slack_bolt": "surelane-bolt"}
"""The extension for the objects of a library, by the library's module. It may not be installed."""
SETTINGS = {
    "SURELANE_BOLT_": "surelane-bolt",
    "SURELANE_FILE_MEMORY": "surelane-agents",
    "SURELANE_MODEL": "surelane-agents",
}
"""The extension that reads a setting, by how the setting's name begins. It may not be installed."""


def _nothing(_: object, /) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Extension:
    """What an extension brings.

    Attributes:
        adapt: makes handlers of an object that ``SURELANE_HANDLERS`` names; ``None`` where the object is not for this
            extension. It may raise :class:`HandlersError` and :class:`SettingsError`.
        built_in: handlers that come before the built-in ones.
        beside: returns handlers that a worker has behind a team's, if it has a token for Slack.
        start: checks the extension's settings once a worker has imported its handlers. It may raise
            :class:`SettingsError`.
    """

    adapt: Callable[[object], Handlers | None] = _nothing
    built_in: Handlers = field(default_factory=Handlers)
    beside: Callable[[], Handlers] = Handlers
    start: Callable[[WorkerSettings], None] = _nothing


@cache
def extensions() -> tuple[Extension, ...]:
    """Return the installed extensions, by their names."""
    found = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return tuple(entry.load() for entry in found)


def adapted(found: object) -> Handlers | None:
    """Return the handlers that an installed extension makes of an object, or ``None`` where no extension does."""
    made = (extension.adapt(found) for extension in extensions())
    return next((handlers for handlers in made if handlers is not None), None)


def extension_for(found: object) -> str | None:
    """Return the name of the package that makes handlers of such an object, if one is known."""
    libraries = {sort.__module__.partition(".")[0] for sort in type(found).__mro__}
    return next((package for library, package in LIBRARIES.items() if library in libraries), None)


def package_of(error: BaseException) -> str | None:
    """Return the name of our package that an import needs and that is not installed; ``None`` for another error."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return LIBRARIES.get(name) or (name.replace("_", "-") if name.startswith("surelane_") else None)


def start_extensions(settings: WorkerSettings, environment: Mapping[str, str] = os.environ) -> None:
    """Let each extension check its settings.

    Raises:
        SettingsError: one cannot work, or a variable is set whose extension is not installed.
    """
    installed = {f"surelane-{entry.name}" for entry in entry_points(group=GROUP)}
    for name, value in sorted(environment.items()):
        for beginning, package in SETTINGS.items():
            if value and name.startswith(beginning) and package not in installed:
                raise SettingsError(f"{name} is set; install {package}")
    for extension in extensions():
        extension.start(settings)

"""The parts of slack-bolt that are not public and that this package needs. No other module touches them.

The tests fail when they change.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slack_bolt import App, Assistant
from slack_bolt.async_app import AsyncApp, AsyncAssistant


@dataclass(frozen=True, slots=True)
class RegisteredListener:
    """A registered listener."""

    name: str
    sort: str
    """The function of slack-bolt that made its matcher, such as ``event`` or ``command``."""
    wanted: Mapping[str, Any]
    """What that function was given, such as the command's name, by the names of its variables."""


def registered(app: App | AsyncApp) -> Iterator[RegisteredListener]:
    """Yield the app's listeners in the order of their registration."""
    listeners = app._async_listeners if isinstance(app, AsyncApp) else app._listeners  # noqa: SLF001
    for listener in listeners:
        function = getattr(listener.matchers[0], "func", None)
        name = getattr(listener.ack_function, "__name__", repr(listener.ack_function))
        yield RegisteredListener(name, *_made_by(function))


def assistants(app: App | AsyncApp) -> bool:
    middleware = app._async_middleware_list if isinstance(app, AsyncApp) else app._middleware_list  # noqa: SLF001
    return any(isinstance(each, Assistant | AsyncAssistant) for each in middleware)


def _made_by(function: Callable[..., Any] | None) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the function in which a matcher's function was defined, and the variables that it keeps."""
    if function is None:
        return "", {}
    kept = inspect.getclosurevars(function).nonlocals
    inner = kept.get("func")  # an asynchronous matcher wraps the synchronous one
    if inspect.isfunction(inner):
        return _made_by(inner)
    return re.sub(r"\.<locals>.*", "", getattr(function, "__qualname__", "")), kept

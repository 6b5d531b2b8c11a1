"""Run unmodified slack-bolt apps: ``SURELANE_HANDLERS=my_app:app`` names an ``App`` or an ``AsyncApp``.

The entry point ``surelane.handlers`` names :data:`EXTENSION`. It imports slack-bolt for apps of slack-bolt alone.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, TypeGuard

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from surelane_service.logs import get_logger
from surelane_service.service_settings import load_settings, split, warn_of_misspelled
from surelane_worker.extensions import Extension
from surelane_worker.handling.registry import Handlers
from surelane_worker.handling.routes import is_interactive

if TYPE_CHECKING:
    from slack_bolt import App
    from slack_bolt.async_app import AsyncApp

__all__ = ["EXTENSION", "BoltSettings", "adapt", "bolt_handlers", "is_bolt_app"]


class BoltSettings(BaseSettings):
    """The settings of Bolt apps."""

    model_config = SettingsConfigDict(extra="ignore")
    kinds: Annotated[tuple[str, ...], NoDecode, BeforeValidator(split)] = Field(
        (), validation_alias="SURELANE_BOLT_KINDS"
    )
    """Kinds of events for a Bolt app, beside the kinds that its listeners are seen to take, separated by commas."""


def adapt(found: object) -> Handlers | None:
    """Make handlers of a Bolt app, with the kinds of the setting. Return ``None`` for any other object.

    Raises:
        HandlersError: it has no listeners, or their kinds of events cannot be read.
    """
    if not is_bolt_app(found):
        return None
    warn_of_misspelled(BoltSettings)
    return bolt_handlers(found, load_settings(BoltSettings).kinds)


def is_bolt_app(found: object) -> "TypeGuard[App | AsyncApp]":
    """Return whether an object is an app of slack-bolt, without importing slack-bolt."""
    theirs = [sort for sort in type(found).__mro__ if sort.__module__.startswith("slack_bolt.")]
    return any(sort.__name__ in ("App", "AsyncApp") for sort in theirs)


def bolt_handlers(app: "App | AsyncApp", kinds: Iterable[str] = ()) -> Handlers:
    """Return handlers that run the listeners of a Bolt app. They can be included in others.

    Args:
        app: the app. From now on it runs nowhere else.
        kinds: further kinds of events, beside those of its listeners.

    Raises:
        HandlersError: it has no listeners, or their kinds of events cannot be read.
    """
    from slack_bolt.async_app import AsyncApp  # noqa: PLC0415 - slack-bolt is optional

    from surelane_bolt import asynchronous, synchronous  # noqa: PLC0415
    from surelane_bolt.kinds import idle_listeners, kinds_of  # noqa: PLC0415

    handle = asynchronous.handler_of(app) if isinstance(app, AsyncApp) else synchronous.handler_of(app)
    kinds = tuple(kinds)
    taken = kinds_of(app, kinds)
    for name, reason in idle_listeners(app, kinds):
        get_logger(__name__).warning("a listener of the Bolt app never runs", listener=name, reason=reason)
    handlers = Handlers()
    handlers.on(*taken, answers=any(map(is_interactive, taken)))(handle)
    return handlers


EXTENSION = Extension(adapt=adapt)

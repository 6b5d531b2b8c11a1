"""Read an app's manifest: what Slack offers to people, and which events and scopes the app has."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surelane.errors import SettingsError
from surelane_service import manifest


class Entry(BaseModel):
    """A part of the manifest. The simulator passes over what it does not use."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Command(Entry):
    """A slash command."""

    command: str
    description: str = ""
    usage_hint: str = ""


class Shortcut(Entry):
    """A shortcut: of the message box (``global``), or of a message."""

    name: str
    type: Literal["global", "message"]
    callback_id: str
    description: str = ""


class Manifest(Entry):
    """What the simulator takes from a manifest."""

    name: str = "Surelane"
    bot_name: str = "surelane"
    commands: tuple[Command, ...] = ()
    shortcuts: tuple[Shortcut, ...] = ()
    home_tab: bool = True
    unfurl_domains: frozenset[str] = Field(default_factory=frozenset)
    events: frozenset[str] = Field(default_factory=frozenset)
    scopes: frozenset[str] | None = None
    """The bot token's scopes; ``None`` means all."""


DOCUMENTED = Manifest(
    commands=(
        Command(command="/status", description="Say how things are"),
        Command(command="/rules", description="Show and change the rules for the agent"),
        Command(command="/memory", description="Show and change what the agent remembers"),
    ),
    shortcuts=(Shortcut(name="Ask", type="global", callback_id="ask", description="Ask the bot a question"),),
    events=frozenset({"app_context_changed", "app_home_opened", "app_mention", "message.im"}),
)
"""The app of ``docs/slack-app-manifest.yaml``, with all scopes."""


def read_manifest(path: Path | None) -> Manifest:
    """Read a manifest in YAML or JSON, or return the documented one.

    Raises:
        SettingsError: the file cannot be read, or is no manifest.
    """
    if path is None:
        return DOCUMENTED
    written = manifest.read_manifest(path)
    manifest.bot_events(path)
    try:
        return manifest_of(written)
    except AttributeError:
        told = "features, oauth_config and settings are no groups of entries"
        raise SettingsError(f"{manifest.MANIFEST}: {path}: {told}") from None
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        at = ".".join(map(str, wrong["loc"]))
        raise SettingsError(f"{manifest.MANIFEST}: {path}: {at}: {wrong['msg']}") from None


def manifest_of(written: Mapping[str, Any]) -> Manifest:
    """Return a manifest from its form in Slack's app settings."""
    features, settings = written.get("features") or {}, written.get("settings") or {}
    name = (written.get("display_information") or {}).get("name") or "Surelane"
    scopes = (written.get("oauth_config") or {}).get("scopes") or {}
    return Manifest.model_validate(
        {
            "name": name,
            "bot_name": (features.get("bot_user") or {}).get("display_name") or name.lower(),
            "commands": features.get("slash_commands") or (),
            "shortcuts": features.get("shortcuts") or (),
            "home_tab": (features.get("app_home") or {}).get("home_tab_enabled", False),
            "unfurl_domains": features.get("unfurl_domains") or (),
            "events": (settings.get("event_subscriptions") or {}).get("bot_events") or (),
            "scopes": scopes.get("bot") or (),
        }
    )

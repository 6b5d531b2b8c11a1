"""Read a Slack app's manifest, the one place of the event types that the app subscribes to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surelane.errors import SettingsError

MANIFEST = "SURELANE_MANIFEST"
NAMES = ("manifest.yaml", "manifest.yml", "manifest.json")


def found_manifest(*folders: Path) -> Path | None:
    """Return the manifest in the first of these folders that has one. Default: in the working directory."""
    paths = (folder / name for folder in folders or (Path.cwd(),) for name in NAMES)
    # Other programs have files of these names, too.
    return next(
        (path for path in paths if path.is_file() and b"display_information" in path.read_bytes()), None
    )


def read_manifest(path: Path) -> Mapping[str, Any]:
    """Read a manifest in YAML, and so in JSON, too.

    Raises:
        SettingsError: it cannot be read. One line names the file and the line.
    """
    import yaml  # noqa: PLC0415 - a service without a manifest needs none of it

    try:
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        mark, found = getattr(error, "problem_mark", None), ("problem", "strerror")
        why = next(
            (text for each in found if (text := getattr(error, each, None))), " ".join(str(error).split())
        )
        at = f":{mark.line + 1}" if mark else ""
        raise SettingsError(f"{MANIFEST}: {path}{at}: {why}") from None
    if not isinstance(written, dict):
        raise SettingsError(f"{MANIFEST}: {path}: it is no manifest of a Slack app")
    return written


def bot_events(path: Path | None) -> frozenset[str] | None:
    """Return the event types that a manifest subscribes to; ``None`` without a manifest. Raises as read_manifest."""
    return None if path is None else frozenset(_names(path, "settings", "event_subscriptions", "bot_events"))


def bot_scopes(path: Path | None) -> tuple[str, ...]:
    """Return the bot's scopes in a manifest; none without a manifest. Raises as read_manifest."""
    return () if path is None else _names(path, "oauth_config", "scopes", "bot")


def _names(path: Path, *parts: str) -> tuple[str, ...]:
    found: Any = read_manifest(path)
    for part in parts:
        found = (found.get(part) if isinstance(found, dict) else found) or {}
    if isinstance(found, dict | list) and all(isinstance(name, str) for name in found):
        return tuple(found)
    raise SettingsError(f"{MANIFEST}: {path}: {parts[-1]} is no list of names")


def slash_commands(path: Path | None) -> frozenset[str] | None:
    """Return a manifest's commands; ``None`` where it tells no features of the app. Raises as read_manifest."""
    features = None if path is None else read_manifest(path).get("features")
    if not isinstance(features, dict):
        return None
    listed = features.get("slash_commands") or ()
    return frozenset(str(each["command"]) for each in listed if isinstance(each, dict) and "command" in each)

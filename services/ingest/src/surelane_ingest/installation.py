"""Which installation of the app an event was delivered for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Installation:
    """Where the app is installed: a workspace, or with ``is_enterprise_install`` a whole enterprise grid."""

    enterprise_id: str | None
    team_id: str | None
    is_enterprise_install: bool


def installation(envelope: Mapping[str, Any]) -> Installation:
    """The installation whose token answers an event: that of ``authorizations[0]``.

    Not the envelope's ``team_id``: in channels shared between workspaces and on an enterprise grid that is
    the workspace the event happened in, which need not have the app. It is used only where there is no
    authorization.
    """
    authorizations = envelope.get("authorizations")
    first = authorizations[0] if isinstance(authorizations, list) and authorizations else None
    source = first if isinstance(first, dict) else envelope
    return Installation(
        _text(source.get("enterprise_id")),
        _text(source.get("team_id")),
        source.get("is_enterprise_install") is True,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

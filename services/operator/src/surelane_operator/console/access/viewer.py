"""The person or the program behind a request, and what it may do."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from aiohttp import web

Role = Literal["viewer", "operator"]
"""A viewer reads. An operator also changes."""
CSRF_HEADER = "X-CSRF-Token"
"""The header with which the page proves that a changing request is its own."""


EVERYBODY = "*"
"""A group that stands for each person who is signed in, in any group or in none."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of each role, as a provider or a proxy names them."""

    viewers: Collection[str]
    operators: Collection[str]

    def role(self, groups: Collection[str]) -> Role | None:
        """Return the role of a person in ``groups``; ``None``: they may not see the page."""
        named = {EVERYBODY, *groups}
        if not named.isdisjoint(self.operators):
            return "operator"
        return None if named.isdisjoint(self.viewers) else "viewer"


@dataclass(frozen=True, slots=True)
class Viewer:
    """The person or the program behind a request. Actions are kept under ``name``.

    Changing requests send ``csrf`` in :data:`CSRF_HEADER`. It is empty for a bearer token.
    """

    name: str
    role: Role
    csrf: str

    def may(self, role: Role) -> bool:
        """Return whether this viewer may do what needs ``role``."""
        return role == "viewer" or self.role == "operator"


VIEWER = web.RequestKey("viewer", Viewer)
"""The key of a request under which the guard puts its viewer."""


def viewer_of(request: web.Request) -> Viewer:
    """Return the viewer behind a guarded request."""
    return request[VIEWER]

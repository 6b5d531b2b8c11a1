"""The person or the program behind a request, and what it may do."""

from dataclasses import dataclass
from typing import Literal

from aiohttp import web

Role = Literal["viewer", "operator"]
"""A viewer reads. An operator also changes."""
CSRF_HEADER = "X-CSRF-Token"
"""The header with which the page proves that a changing request is its own."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """The person or the program behind a request.

    Attributes:
        name: as actions are kept under.
        role: what it may do.
        csrf: the value of :data:`CSRF_HEADER` of its changing requests; empty for a bearer token.
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

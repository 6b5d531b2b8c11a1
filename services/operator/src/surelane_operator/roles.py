"""Who looks or acts, and what they may do."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Role = Literal["viewer", "operator"]
"""A viewer reads. An operator also changes."""
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
    """The person or the program behind a request. Changing ones send ``csrf``, which a bearer token has not."""

    name: str
    role: Role
    csrf: str

    def may(self, role: Role) -> bool:
        """Return whether this viewer may do what needs ``role``."""
        return role == "viewer" or self.role == "operator"

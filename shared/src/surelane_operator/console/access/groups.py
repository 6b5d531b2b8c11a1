"""Groups: which of those that a provider or a proxy names may view, and which may operate."""

from collections.abc import Collection
from dataclasses import dataclass

from surelane_operator.console.access.viewer import Role

EVERYBODY = "*"
"""Stands for each person who is signed in, in any group or in none."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of each role."""

    viewers: Collection[str]
    operators: Collection[str]

    def role(self, groups: Collection[str]) -> Role | None:
        """Return the role of a person in ``groups``; ``None``: they may not see the page."""
        named = {EVERYBODY, *groups}
        if not named.isdisjoint(self.operators):
            return "operator"
        return None if named.isdisjoint(self.viewers) else "viewer"

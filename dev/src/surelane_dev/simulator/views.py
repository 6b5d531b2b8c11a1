"""Keep what each person has open of the app: up to three modals over each other, and the *Home* tab."""

from collections.abc import Callable
from dataclasses import dataclass

from surelane_dev.simulator.workspace.model import JSON

DEEPEST = 3
"""Most modals over each other: one that is opened, and two that are pushed."""


@dataclass(slots=True)
class View:
    """A modal that a user has open, or the user's *Home* tab."""

    user: str
    content: JSON

    @property
    def id(self) -> str:
        """The view's id, which stays the same when its content is replaced."""
        return str(self.content["id"])


class Views:
    """The open modals of each user, the lowest first, and the published *Home* tabs."""

    def __init__(self) -> None:
        self.changed: Callable[[str], None] = lambda _: None
        """Called with the user whose views have changed."""
        self._stacks: dict[str, list[View]] = {}
        self._homes: dict[str, View] = {}

    def stack(self, user: str) -> list[View]:
        """Return a user's open modals, the lowest first."""
        return list(self._stacks.get(user, ()))

    def values(self) -> list[View]:
        return [view for stack in self._stacks.values() for view in stack]

    def home(self, user: str) -> View | None:
        """Return a user's *Home* tab, if the app has published one."""
        return self._homes.get(user)

    def find(self, view_id: str = "", external_id: str = "") -> View | None:
        """Return a view by its id or by the app's own id."""
        for view in (*self.values(), *self._homes.values()):
            if (view_id and view.id == view_id) or (
                external_id and view.content["external_id"] == external_id
            ):
                return view
        return None

    def open(self, view: View) -> None:
        """Show a modal alone, in place of all that its user has open."""
        self._stacks[view.user] = [view]
        self.changed(view.user)

    def push(self, view: View) -> None:
        self._stacks.setdefault(view.user, []).append(view)
        self.changed(view.user)

    def replace(self, view: View, content: JSON) -> None:
        view.content = content
        self.changed(view.user)

    def publish(self, view: View) -> None:
        self._homes[view.user] = view
        self.changed(view.user)

    def close(self, view_id: str) -> View | None:
        """Close a modal; those below it stay."""
        view = next((view for view in self.values() if view.id == view_id), None)
        if view is not None:
            self._stacks[view.user].remove(view)
            self.changed(view.user)
        return view

    def clear(self, user: str) -> list[View]:
        """Close all modals of a user. Return them, the uppermost first."""
        closed = self._stacks.pop(user, [])
        if closed:
            self.changed(user)
        return closed[::-1]

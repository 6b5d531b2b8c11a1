"""The screens, in the order in which the navigation lists them."""

from surelane_operator.console.screen import Screen, Sources
from surelane_operator.console.screens.event import event
from surelane_operator.console.screens.events import events
from surelane_operator.console.screens.find import find
from surelane_operator.console.screens.overview import overview
from surelane_operator.console.screens.thread import thread


def all_screens(sources: Sources) -> list[Screen]:
    """Return all screens."""
    return [
        overview(sources),
        events(sources),
        event(sources),
        thread(sources),
        find(sources),
    ]

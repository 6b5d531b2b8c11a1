"""The screens, in the order in which the navigation lists them."""

from surelane_operator.console.screen import Screen, Sources
from surelane_operator.console.screens.overview import overview


def all_screens(sources: Sources) -> list[Screen]:
    """Return all screens."""
    return [
        overview(sources),
    ]

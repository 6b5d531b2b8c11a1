"""Remember which options an app gave to a menu, because a person may choose only among those."""

from collections import OrderedDict
from collections.abc import Iterable

from surelane_dev.simulator.state import Options
from surelane_dev.simulator.workspace.model import JSON

KEPT = 200
"""The number of menus whose options are kept; those of older ones go."""


class Offered:
    """The options of each menu by their values. A menu lies in a message or a view, the *place*."""

    def __init__(self) -> None:
        self._options: OrderedDict[tuple[str, str, str], dict[str, JSON]] = OrderedDict()

    def add(self, place: str, element: JSON, options: Iterable[JSON]) -> None:
        """Add options to those that a menu was given before."""
        key = (place, element["block_id"], element["action_id"])
        known = self._options.pop(key, {})
        self._options[key] = known | {str(option["value"]): option for option in options}
        while len(self._options) > KEPT:
            self._options.popitem(last=False)

    def of(self, place: str) -> Options:
        """Return the function that looks up the options of a menu in this place."""
        return lambda block_id, action_id: self._options.get((place, block_id, action_id), {})

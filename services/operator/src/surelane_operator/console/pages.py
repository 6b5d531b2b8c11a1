"""Render screens: a whole page, or the part of it that changes."""

import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from surelane import __version__
from surelane_operator.console.screen import Screen, Values
from surelane_operator.console.screens import SCREENS
from surelane_operator.doctor.finding import span
from surelane_operator.reads.timeline import in_words, moment_of
from surelane_operator.roles import Viewer

TEMPLATES = Path(__file__).parent / "templates"
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?[+-]\d\d(?::\d\d)?)")


@cache
def _environment() -> Environment:
    """Return the templates, compiled once in a process. Each extends ``layout.html``."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "moment": moment,
        "clock": clock,
        "iso": iso,
        "reason": in_words,
        "split_times": split_times,
        "span": span,
        "part": lambda value: quote(str(value), safe=""),  # one part of an address
    }
    environment.globals |= {
        "navigation": [screen for screen in SCREENS if screen.listed],
        "version": __version__,
    }
    # A block that is rendered alone sees globals only, no imports of its template.
    for name, template in (("ui", "components.html"), ("draw", "charts.html")):
        environment.globals[name] = environment.get_template(template).module
    return environment


def page(screen: Screen, values: Values, viewer: Viewer) -> str:
    """Render a whole page for a person."""
    return _template(screen.name).render(values, screen=screen, viewer=viewer)


def fragment(screen: Screen, values: Values) -> str:
    """Render the block ``live``: what changes in the page, the same for every person."""
    template = _template(screen.name)
    return "".join(template.blocks["live"](template.new_context(dict(values))))


def bare(name: str, values: Values) -> str:
    """Render a page without layout, for people who are not signed in."""
    return _template(name).render(values)


def _template(name: str) -> Template:
    return _environment().get_template(f"{name}.html")


def moment(at: datetime) -> str:
    """Format a time for people, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def clock(at: datetime) -> str:
    """Format a time for people to the millisecond, in UTC."""
    return f"{moment(at)}.{at.microsecond // 1000:03}"


def split_times(text: str) -> list[str | datetime]:
    """Split a text at the times in it. Each second part is a time."""
    return [(nth % 2 and moment_of(each)) or each for nth, each in enumerate(_TIME.split(text))]


def iso(at: datetime) -> str:
    """Format a time for programs, in UTC."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

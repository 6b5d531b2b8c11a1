"""One class name stands for one thing, in all packages together, and a handler's author meets few names."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import surelane_worker

ROOT = Path(__file__).parents[2]
SOURCES = ("shared/*/src", "services/*/src", "extensions/*/src", "migrations/src", "dev/src")
PYDANTICS = {"Config"}
"""Classes inside of others that pydantic looks for by this name."""
OPEN: tuple[str, ...] = ()
"""Names that still stand for two things."""


def classes() -> Iterator[tuple[str, str]]:
    """Yield the name and the place of each class. A linked folder counts where its files are."""
    for sources in SOURCES:
        for file in sorted(path for folder in ROOT.glob(sources) for path in folder.rglob("*.py")):
            if file.resolve() == file:
                for node in ast.walk(ast.parse(file.read_text())):
                    if isinstance(node, ast.ClassDef) and node.name not in PYDANTICS:
                        yield node.name, f"{file.relative_to(ROOT)}:{node.lineno}"


def test_each_class_name_stands_for_one_thing() -> None:
    places = defaultdict(list)
    for name, place in classes():
        places[name].append(place)
    assert len(places) > 500
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in OPEN} == {}
    assert sorted(OPEN) == sorted(twice)


def test_a_handler_s_author_meets_few_names() -> None:
    assert len([name for name in surelane_worker.__all__ if not name.startswith("__")]) <= 20

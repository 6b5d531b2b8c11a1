"""Single faults, over all promises of docs/reliability.md, as changes of the sources.

Each is a slip that a programmer makes: a condition dropped, a wrong column, a missing call. In ``faults.txt``

    # NAME: the promise that it breaks
    @ the file > the test files that should find it, below tests/ or from the root on
    - text that is there exactly once; more such lines are the lines that follow
    + what stands there instead
    ~ text ==> what stands there instead
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PLACES = {
    "sql": "migrations/idempotent",
    "migrations": "migrations/src/surelane_migrations",
    "client": "shared/client/src/surelane",
    "service": "shared/service/src/surelane_service",
    "ingest": "services/ingest/src/surelane_ingest",
    "operator": "services/operator/src/surelane_operator",
    "worker": "services/worker/src/surelane_worker",
    "shards": "extensions/shards/src/surelane_shards",
    "encryption": "extensions/encryption/src/surelane_encryption",
}
"""How files begin in the table."""


@dataclass(slots=True)
class Edit:
    """A change of a file."""

    file: str
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Mutant:
    """A fault: usually one edit, more where one slip has several places."""

    name: str
    promise: str
    tests: list[str] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)


def read(table: str) -> Iterator[Mutant]:
    """Read a table. ``ValueError``: a line is none of these sorts."""
    mutant = Mutant("", "")
    for line in table.strip().splitlines():
        sort, text = line[:2].rstrip(), line[2:]
        if sort == "#":
            if mutant.name:
                yield mutant
            name, _, promise = text.partition(": ")
            mutant = Mutant(name, promise)
        elif sort == "@":
            file, _, tests = text.partition(" > ")
            place, _, rest = file.partition("/")
            mutant.edits.append(Edit(f"{PLACES[place]}/{rest}"))
            elsewhere = ("dev/", "extensions/")
            mutant.tests += [
                each if each.startswith(elsewhere) else f"tests/{each}" for each in tests.split()
            ]
        elif sort == "~":
            mutant.edits[-1].old, mutant.edits[-1].new = ([part] for part in text.split(" ==> "))
        elif sort in ("-", "+"):
            (mutant.edits[-1].old if sort == "-" else mutant.edits[-1].new).append(text)
        else:
            raise ValueError(f"not a line of a table of faults: {line}")
    yield mutant


MUTANTS = {mutant.name: mutant for mutant in read((Path(__file__).parent / "faults.txt").read_text())}
"""By name. The first twelve were found by simulations first."""

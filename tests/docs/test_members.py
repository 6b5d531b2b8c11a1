"""What an editor offers to the author of a handler is what the documentation shows, and no more."""

import re

import pytest

from surelane_worker import Context, Handlers
from surelane_worker.slack.replies import Replies
from tests.docs.blocks import ROOT

PAGES = ("handlers", "durable", "jobs")
"""The pages that a team reads to write its handlers."""


def members(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("kind", "shown_as", "most"),
    [
        (Context, r"ctx\.(\w+)", 20),
        (Replies, r"ctx\.slack\.(\w+)", 12),
        (Handlers, r"@?handlers\.(?!md\b)(\w+)", 19),
    ],
)
def test_public_members_are_the_documented_ones(kind: type, shown_as: str, most: int) -> None:
    text = "\n".join((ROOT / f"docs/{page}.md").read_text() for page in PAGES)
    documented = set(re.findall(rf"(?<![\w./])\(?{shown_as}\b", text))
    assert documented
    assert members(kind) == documented
    assert len(documented) <= most

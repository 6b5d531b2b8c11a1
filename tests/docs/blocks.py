"""Find the fenced blocks of the documentation."""

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
    if page.name != "CHANGELOG.md" and page.parent.name != "reference"
]
"""The pages that people write: those of the reference are made from the code."""
_FENCE = re.compile(r"^( *)(`{3,})([^\n]*)\n((?s:.*?))^\1\2 *$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: the page's path in the repository.
        line: the line of its fence.
        language: the first word behind the fence.
        role: the other words, such as ``test``.
        code: its text, without the fence's indentation.
    """

    page: str
    line: int
    language: str
    role: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*languages: str, page: str | None = None) -> list[Block]:
    """Return the blocks in some languages, or all, of one page or all."""
    return [
        block
        for block in _ALL
        if block.language in (languages or {block.language}) and page in (None, block.page)
    ]


def _read() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for fence in _FENCE.finditer(text):
            language, _, role = fence[3].strip().partition(" ")
            line = text.count("\n", 0, fence.start()) + 1
            found.append(Block(str(page.relative_to(ROOT)), line, language, role, dedent(fence[4])))
    return found


_ALL = _read()

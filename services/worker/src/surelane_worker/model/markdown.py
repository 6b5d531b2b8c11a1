"""Escape what a model says in Markdown, so that Slack shows it as it was said.

Slack reads its references, links and escapes in Markdown, too. It shows code as it is, and reads no escape in an
address.
"""

import re

from surelane.text import REFERENCE, escaped
from surelane_worker.slack.chunks import FENCE

LONGEST_SPAN = 500
"""Characters within a line for which the end of a span of code or of a reference is waited for."""
_SPAN = r"(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
_ENDED = re.compile(rf"{_SPAN}(?=.)")
"""A span of code that no further character can make longer."""
_BEGUN = re.compile(rf"<(?:[@#!hmt][^<>\n]{{0,{LONGEST_SPAN}}})?$")
"""The end of a text that the next one may complete to a reference, a link or an alarm."""
_WRITTEN = re.compile(
    rf"{_SPAN}|{REFERENCE}|\]\([^\s()]*|https?://[^\s<>]+|^(?:[ \t]*(?:>|(?:[-*+]|\d+[.)])(?=[ \t])))+"
    "|(?P<bare>[&<>])",
    re.ASCII | re.IGNORECASE,
)


def markdown(text: str, fence: str = "", line: str = "") -> str:
    """Return Markdown for Slack.

    ``fence``: the beginning of the code block that is open before the text. ``line``: what its line begins with.
    """
    begun, said = FENCE.match(fence), list[str]()
    for part in re.findall(r".*\n|.+", text):
        mark, code = FENCE.match(line + part), begun is not None
        if begun is None:
            begun = mark
        elif mark and mark[1].startswith(begun[1]) and not mark[2].strip():
            begun = None
        said.append(part if code or begun else _line(line, part))
        line = ""
    return "".join(said)


def _line(before: str, text: str) -> str:
    written, said = _escaped(before + text), _escaped(before)
    return written[len(said) :] if written.startswith(said) else _escaped(text)


def _escaped(line: str) -> str:
    return _WRITTEN.sub(lambda found: escaped(found["bare"]) if found["bare"] else found[0], line)


def settled(text: str) -> int:
    """Return how much of a text can be said: what follows cannot change what it means."""
    line = text.rfind("\n") + 1
    ticks = _ENDED.sub(lambda span: " " * len(span[0]), text[line:]).find("`")
    code = line + ticks if ticks >= 0 and len(text) - line - ticks < LONGEST_SPAN else len(text)
    begun = _BEGUN.search(text)
    return min(code, begun.start() if begun else code)

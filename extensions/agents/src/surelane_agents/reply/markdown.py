"""Escape what a model says in Markdown, so that Slack shows it as it was said.

Slack reads its references, links and escapes in Markdown, too. It shows code as it is, and reads no escape in an
address.
"""

import re

from surelane.text import REFERENCE, escaped
from surelane_worker.slack.chunks import FENCE

LONGEST_SPAN = 500
"""Characters within a line for which the end of a span of code or of a reference is waited for.

So many before a text are looked at, too: a line may have tens of thousands.
"""
_SPAN = r"(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
_ENDED = re.compile(rf"{_SPAN}(?=.)")
"""A span of code that no further character can make longer."""
_BEGUN = re.compile(rf"<(?:[@#!hmt][^<>\n]{{0,{LONGEST_SPAN}}})?$")
"""The end of a text that the next one may complete to a reference, a link or an alarm."""
_BARE = re.compile("[&<>]")
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
    """Return a text of one line, escaped. ``before`` stands before it in the line."""
    if not _BARE.search(text):
        return text
    before = before if len(before) <= LONGEST_SPAN else f"-{before[-LONGEST_SPAN:]}"
    line, end, said = before + text, len(before), list[str]()
    for found in _WRITTEN.finditer(line):
        if found.end() > end:
            start = max(found.start(), end)
            said += [line[end:start], escaped(found["bare"]) if found["bare"] else line[start : found.end()]]
            end = found.end()
    return "".join([*said, line[end:]])


def settled(text: str) -> int:
    """Return how much of a text can be said: what follows cannot change what it means."""
    line = text.rfind("\n") + 1
    ticks = _ENDED.sub(lambda span: " " * len(span[0]), text[line:]).find("`")
    code = line + ticks if ticks >= 0 and len(text) - line - ticks < LONGEST_SPAN else len(text)
    begun = _BEGUN.search(text)
    return min(code, begun.start() if begun else code)

"""Show the tables in what a model says as Slack's table blocks."""

import re
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from surelane_worker.slack.chunks import LONGEST, Chunk, table_text

MOST_ROWS, MOST_COLUMNS = 100, 20
STYLES = {"strong": "bold", "em": "italic", "s": "strike", "code_inline": "code"}
LINKS = ("https://", "http://", "mailto:")
LINES = re.compile(r".*\n|.+")
MARKDOWN = MarkdownIt().enable(["table", "strikethrough"])


def chunks_of(text: str, fence: str = "") -> list[Chunk]:
    """Return Markdown as chunks: texts, and a block for each table. ``fence``: the code block that is open before it.

    A table with too many rows becomes several, each with the header. One that is too wide or too long becomes code.
    """
    lines, end, chunks = [f"{fence}\n", *LINES.findall(text)], 1, list[Chunk]()
    plain = "".join(lines).replace("\r", " ")  # which would count as the end of a line
    for node in SyntaxTreeNode(MARKDOWN.parse(plain)).children if "|" in text else ():
        if node.type == "table" and node.map:
            first, last = node.map
            source = "".join(lines[first:last]).rstrip("\n")
            shown = [{"type": "blocks", "blocks": [table]} for table in _tables(node)]
            chunks += [_said("".join(lines[end:first])), *(shown or [_said(f"```\n{source}\n```\n")])]
            end = last
    return [chunk for chunk in [*chunks, _said("".join(lines[end:]))] if chunk.get("text") != ""]


def _said(text: str) -> Chunk:
    return {"type": "markdown_text", "text": text}


def _tables(node: SyntaxTreeNode) -> list[dict[str, Any]]:
    """Return a table as blocks that Slack takes; empty: it takes none."""
    head, *body = [row.children for part in node.children for row in part.children]
    columns = [{"align": str(cell.attrs.get("style", "")).rpartition(":")[2] or "left"} for cell in head]
    rows = [[_cell(cell) for cell in row] for row in body]
    blocks = [
        {
            "type": "table",
            "rows": [[_cell(cell) for cell in head], *rows[first : first + MOST_ROWS - 1]],
            "column_settings": columns,
        }
        for first in range(0, len(rows) or 1, MOST_ROWS - 1)
    ]
    fit = len(head) <= MOST_COLUMNS and all(len(table_text(block)) <= LONGEST for block in blocks)
    return blocks if fit else []


def _cell(node: SyntaxTreeNode) -> dict[str, Any]:
    elements = _elements(node, {}, {"type": "text"})
    if all(each.keys() == {"type", "text"} for each in elements):
        return {"type": "raw_text", "text": "".join(each["text"] for each in elements) or " "}
    return {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": elements}]}


def _elements(node: SyntaxTreeNode, style: dict[str, bool], kind: dict[str, str]) -> list[dict[str, Any]]:
    if node.type in STYLES:
        style = style | {STYLES[node.type]: True}
    if node.type == "link" and (url := str(node.attrs["href"])).startswith(LINKS):
        kind = {"type": "link", "url": url}
    if node.children:
        return [each for child in node.children for each in _elements(child, style, kind)]
    return [{**kind, "text": node.content, **({"style": style} if style else {})}] if node.content else []

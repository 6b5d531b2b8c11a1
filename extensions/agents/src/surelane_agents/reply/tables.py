"""Show the tables in what a model says as Slack's blocks: a large one as a data table, which people page and sort."""

import re
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from surelane_agents.reply.markdown import markdown
from surelane_worker.slack.chunks import LONGEST, Chunk, table_text

LARGE, MOST_ROWS, MOST_COLUMNS = 20, 101, 20
"""Rows, with the header, above which a table is large, and of a data table."""
PAGE = 10
"""Rows that a data table shows at once."""
LONGEST_CAPTION = 100
NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,9})?", re.ASCII)
"""What a column is sorted by as numbers."""
STYLES = {"strong": "bold", "em": "italic", "s": "strike", "code_inline": "code"}
LINKS = ("https://", "http://", "mailto:")
MARKDOWN = MarkdownIt().enable(["table", "strikethrough"])


def chunks_of(text: str, fence: str = "", line: str = "") -> list[Chunk]:
    """Return Markdown as chunks: texts, and a block for each table. A table that Slack does not take becomes code.

    ``fence``: the beginning of the code block that is open before the text. ``line``: what its line begins with.
    """
    before, lines, end, chunks = (
        (fence, line),
        [f"{fence}\n", *re.findall(r".*\n|.+", text)],
        1,
        list[Chunk](),
    )
    plain = "".join(lines).replace("\r", " ")  # which would count as the end of a line
    for node in SyntaxTreeNode(MARKDOWN.parse(plain)).children if "|" in text else ():
        if node.type == "table" and node.map:
            first, last = node.map
            block, source = _table(node), "".join(lines[first:last]).rstrip("\n")
            shown = {"type": "blocks", "blocks": [block]} if block else _said(f"```\n{source}\n```\n")
            chunks += [_said(markdown("".join(lines[end:first]), *before)), shown]
            before, end = ("", ""), last
    return [*chunks, _said(markdown("".join(lines[end:]), *before))]


def _said(text: str) -> Chunk:
    return {"type": "markdown_text", "text": text}


def _table(node: SyntaxTreeNode) -> dict[str, Any] | None:
    """Return a table as a block; ``None``: Slack does not take it."""
    head, *body = [row.children for part in node.children for row in part.children]
    columns = [{"align": str(cell.attrs.get("style", ":left")).rpartition(":")[2]} for cell in head]
    rows = [list(map(_cell, row)) for row in (head, *body)]
    block: dict[str, Any] = {"type": "table", "rows": rows, "column_settings": columns}
    if len(rows) > LARGE:
        names = [table_text({"rows": [[cell]]}).strip() for cell in rows[0]]
        caption = f"{len(body)} rows: {', '.join(names)}"[:LONGEST_CAPTION]
        header = [{"type": "raw_text", "text": name or " "} for name in names]
        block = {"type": "data_table", "caption": caption, "page_size": PAGE}
        block["rows"] = [header, *(list(map(_number, row)) for row in rows[1:])]
    fits = len(rows) <= MOST_ROWS and len(columns) <= MOST_COLUMNS and len(table_text(block)) <= LONGEST
    return block if fits else None


def _cell(node: SyntaxTreeNode) -> dict[str, Any]:
    elements = _elements(node, {}, {"type": "text"}) or [{"type": "text", "text": " "}]
    return {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": elements}]}


def _number(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell that has nothing but a number as one by which Slack sorts."""
    text = table_text({"rows": [[cell]]}).strip()
    return {"type": "raw_number", "value": float(text), "text": text} if NUMBER.fullmatch(text) else cell


def _elements(node: SyntaxTreeNode, style: dict[str, bool], kind: dict[str, str]) -> list[dict[str, Any]]:
    if node.type in STYLES:
        style = style | {STYLES[node.type]: True}
    if node.type == "link" and (url := str(node.attrs["href"])).startswith(LINKS):
        kind = {"type": "link", "url": url}
    if node.children:
        return [each for child in node.children for each in _elements(child, style, kind)]
    return [{**kind, "text": node.content, **({"style": style} if style else {})}] if node.content else []

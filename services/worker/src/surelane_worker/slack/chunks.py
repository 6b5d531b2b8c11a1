"""What a message says: chunks of text, tasks and blocks, and how they are divided among messages."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LONGEST = 10_000
"""Most characters of text and tables in one message; the rest goes on in the next one.

Slack takes 12,000 per call, and about as many in a whole streamed message, counted after its own formatting. All tables
of a message may have 10,000.
"""
SHORTEST = LONGEST // 2
"""A message is cut before a code block, or behind a line or a word, unless it would hold fewer characters."""
LONGEST_LANGUAGE = 20
FENCE = re.compile(r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,})(.*)", re.MULTILINE)
"""A line that begins or ends a code block."""

Chunk = dict[str, Any]


def cut(said: Sequence[Chunk], chunks: Sequence[Chunk]) -> tuple[list[Chunk], list[Chunk]]:
    """Return the chunks for which a message has room that says something already, and the rest.

    Adjacent texts are joined. Slack takes one table per message.
    """
    now: list[Chunk] = []
    before = "".join(map(_text, said))
    full = any(map(_has_table, said))
    for position, chunk in enumerate(chunks):
        text, room = _text(chunk), LONGEST - len(before)
        if _has_table(chunk):
            if (said or now) and (full or len(text) > room):
                return now, list(chunks[position:])
            full = True
        elif len(text) > room:
            part, rest = _cut_text(before, text, max(room, 0))
            return _joined(now, chunk, part), [chunk | {"text": rest}, *chunks[position + 1 :]]
        before += text
        now = _joined(now, chunk, text)
    return now, []


def content_of(chunks: Iterable[Chunk], below: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return chunks as arguments of ``chat.postMessage`` or ``chat.update``: blocks, and the text of a notification."""
    shown: list[dict[str, Any]] = []
    plan: dict[str, Any] = {"type": "plan", "title": ""}
    tasks: dict[str, dict[str, Any]] = {}
    for chunk in chunks:
        match chunk["type"]:
            case "markdown_text" if shown and shown[-1]["type"] == "markdown":
                shown[-1] = {"type": "markdown", "text": shown[-1]["text"] + chunk["text"]}
            case "markdown_text":
                shown.append({"type": "markdown", "text": chunk["text"]})
            case "blocks":
                shown += chunk["blocks"]
            case "plan_update":
                plan["title"] = chunk["title"]
            case "task_update":
                card: Chunk = {name: chunk[name] for name in ("title", "status", "sources") if name in chunk}
                tasks[chunk["id"]] = {"type": "task_card", "task_id": chunk["id"], **card}
    plans = [plan | {"tasks": list(tasks.values())}] if tasks else []
    text = "".join(each["text"] if each["type"] == "markdown" else table_text(each) for each in shown)
    return {"text": text or plan["title"], "blocks": [*plans, *shown, *below]}


def open_fence(text: str) -> re.Match[str] | None:
    """Return the beginning of the code block that a text leaves open."""
    begun = None
    for fence in FENCE.finditer(text):
        if begun is None:
            begun = fence
        elif fence[1].startswith(begun[1]) and not fence[2].strip():
            begun = None
    return begun


def table_text(block: Mapping[str, Any]) -> str:
    """Return a table block as lines of text; empty for other blocks."""
    rows = block["rows"] if block["type"] == "table" else ()
    return "".join(f"{' | '.join(map(_words, row))}\n" for row in rows)


def _words(part: Mapping[str, Any]) -> str:
    return part.get("text") or "".join(map(_words, part.get("elements", ())))


def _cut_text(before: str, text: str, room: int) -> tuple[str, str]:
    """Divide a text that follows another one in a message. A code block that must be cut is closed and begun again."""
    fits = _end_of_line(text, room)
    fence = open_fence(before + text[:fits])
    if fence is None:
        return text[:fits], text[fits:]
    begins = fence.start() - len(before)
    if begins > max(0, room - SHORTEST):
        return text[:begins], text[begins:]
    line = text.rfind("\n", 0, room) + 1
    if room < SHORTEST and (line or before.endswith("\n")):
        fits = line
    code, mark = text[:fits].removesuffix("\n"), fence[1][:LONGEST_LANGUAGE]
    return f"{code}\n{mark}\n", f"{mark}{fence[2][:LONGEST_LANGUAGE]}\n{text[fits:]}"


def _end_of_line(text: str, room: int) -> int:
    """Return how much of a text to keep in a message: up to a line's or a word's end, if the message is not short."""
    ends = (text.rfind(mark, 0, room) + 1 for mark in ("\n", " "))
    return next((end for end in ends if end > room - SHORTEST and end > 0), room)


def _joined(chunks: list[Chunk], chunk: Chunk, text: str) -> list[Chunk]:
    if chunk["type"] != "markdown_text":
        return [*chunks, chunk]
    if chunks and chunks[-1]["type"] == "markdown_text":
        return [*chunks[:-1], chunk | {"text": chunks[-1]["text"] + text}]
    return [*chunks, chunk | {"text": text}] if text else chunks


def _text(chunk: Chunk) -> str:
    return str(chunk["text"]) if "text" in chunk else "".join(map(table_text, chunk.get("blocks", ())))


def _has_table(chunk: Chunk) -> bool:
    return any(block["type"] == "table" for block in chunk.get("blocks", ()))

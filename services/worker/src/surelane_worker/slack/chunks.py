"""What a message says: chunks of text, tasks and blocks, and how they are divided among messages."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from surelane.text import escaped_once

LONGEST = 10_000
"""Most bytes of text, tables and tasks in one message, in UTF-8; the rest goes on in the next one.

Slack takes 12,000 characters per call. Apps have measured that it takes about 10,600 bytes in a whole message, in which
what a task found counts twice. Tables have 10,000 characters.
"""
MOST_TASKS = 50
"""Slack's bound for one message."""
LONGEST_UPDATE = 4_000
"""Most characters of ``text`` that ``chat.update`` takes. Beside blocks, people see it in notifications only."""
LONGEST_SECTION = 3000
MOST_SECTIONS = 14
"""For the 40,000 characters that Slack takes in a new message."""
SHORTEST = LONGEST // 2
"""A message is cut before a code block, or behind a line or a word, unless it would hold fewer characters."""
CODE = "```"
"""What begins and ends a code block in Slack's own markup."""
FENCE = re.compile(r"^ {0,3}(`{3,9}(?=[^`\n]{0,40}$)|~{3,9})(.{0,40})$", re.MULTILINE)
"""A line that begins or ends a code block. A longer one is text."""
_CUT = re.compile(r"(?:&[a-z]{0,3}|<[@#!hmt][^<>\n]{0,500}|<)\Z")

Chunk = dict[str, Any]


def cut(said: Sequence[Chunk], chunks: Sequence[Chunk]) -> tuple[list[Chunk], list[Chunk]]:
    """Return the chunks for which a message that ``said`` something has room, and the rest. It takes one table."""
    now: list[Chunk] = []
    before, full = "".join(map(_text, said)), any(_text(each) for each in said if "blocks" in each)
    room, tasks = LONGEST - sum(map(_size, said)), {each.get("id") for each in said} - {None}
    for position, chunk in enumerate(chunks):
        text, size = _text(chunk), _size(chunk)
        if "text" in chunk and size > room:
            fits = len(_bytes(text)[: max(room, 0)].decode(errors="ignore"))
            part, rest = _cut_text(before, text, fits)
            return joined([*now, chunk | {"text": part}]), [chunk | {"text": rest}, *chunks[position + 1 :]]
        tasks |= {chunk.get("id")} - {None}
        if (
            "text" not in chunk
            and (said or now)
            and (size > room or len(tasks) > MOST_TASKS or (text and full))
        ):
            return joined(now), list(chunks[position:])
        full = full or bool(text and "blocks" in chunk)
        before, room = before + text, room - size
        now.append(chunk)
    return joined(now), []


def content_of(chunks: Sequence[Chunk], below: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return chunks as arguments of ``chat.postMessage`` or ``chat.update``: blocks, and the text of a notification."""
    shown: list[dict[str, Any]] = []
    tasks: dict[str, dict[str, Any]] = {}
    for chunk in joined(chunks):
        if chunk["type"] == "markdown_text":
            shown.append({"type": "markdown", "text": chunk["text"]})
        elif chunk["type"] == "task_update":
            card = {name: chunk[name] for name in chunk.keys() & {"title", "status", "sources"}}
            tasks[chunk["id"]] = {"type": "task_card", "task_id": chunk["id"], **card}
        shown += chunk.get("blocks", ())
    title = next((chunk["title"] for chunk in chunks if chunk["type"] == "plan_update"), "Steps")
    plan = [{"type": "plan", "title": title, "tasks": list(tasks.values())}] if tasks else []
    text = "".join(map(_text, chunks)) or (title if tasks else "")
    return {"text": escaped_once(text, alarms=True), "blocks": [*plan, *shown, *below]}


def update_of(text: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as arguments of ``chat.update``: a text that is too long for it becomes blocks."""
    if text is None or len(text) <= LONGEST_UPDATE:
        return {"text": text, **arguments}
    return {"blocks": sections(text), **arguments, "text": beginning(text, LONGEST_UPDATE)}


def sections(text: str) -> list[dict[str, Any]]:
    """Return a text as blocks. A code block that must be cut is closed and begun again: what is in it stays code."""
    parts = list[str]()
    while text and len(parts) < MOST_SECTIONS:
        part = beginning(text, LONGEST_SECTION)
        if part != text and CODE in text:
            part = beginning(text, LONGEST_SECTION - len(CODE)).rstrip("`") or part
        text = text[len(part) :]
        if text and part.count(CODE) % 2:
            part, text = part + CODE, CODE + text
        parts.append(part)
    return [{"type": "section", "text": {"type": "mrkdwn", "text": part}} for part in parts or [" "]]


def beginning(text: str, most: int) -> str:
    """Return as much of a text as fits, without the beginning of an escape or a reference."""
    cut = _CUT.search(text, 0, most) if len(text) > most else None
    return text[: cut.start() if cut and cut.start() else most]


def joined(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Return chunks with adjacent texts as one."""
    found: list[Chunk] = []
    for chunk in chunks:
        if found and chunk["type"] == found[-1]["type"] == "markdown_text":
            found[-1] = chunk | {"text": found[-1]["text"] + chunk["text"]}
        elif chunk.get("text") != "":
            found.append(chunk)
    return found


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
    return "".join(f"{' | '.join(map(_words, row))}\n" for row in block.get("rows", ()))


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
    if room < SHORTEST and (before.endswith("\n") or "\n" in text[:room]):
        fits = text.rfind("\n", 0, room) + 1
    code = text[:fits].removesuffix("\n")
    return f"{code}\n{fence[1]}\n", f"{fence[0]}\n{text[fits:]}"


def _end_of_line(text: str, room: int) -> int:
    """Return how much of a text to keep in a message: up to a line's or a word's end, if the message is not short."""
    ends = (text.rfind(mark, 0, room) + 1 for mark in ("\n", " "))
    end = next((end for end in ends if end > room - SHORTEST and end > 0), room)
    return len(beginning(text, end))


def _size(chunk: Chunk) -> int:
    parts = [_text(chunk), chunk.get("title"), *[chunk.get("details"), chunk.get("output")] * 2]
    return sum(len(_bytes(str(part))) for part in parts if part)


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")  # a model may cut a character in two


def _text(chunk: Chunk) -> str:
    return str(chunk["text"]) if "text" in chunk else "".join(map(table_text, chunk.get("blocks", ())))

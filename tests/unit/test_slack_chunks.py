"""What a message says is divided at good places."""

from typing import Any

import pytest

from surelane.text import typed
from surelane_worker.model.tables import chunks_of
from surelane_worker.model.voice import Speech
from surelane_worker.slack.chunks import LONGEST, content_of, cut, joined, open_fence, sections, update_of
from surelane_worker.slack.stream import Stream


def text(said: str) -> dict[str, Any]:
    return {"type": "markdown_text", "text": said}


def messages(chunks: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    found = []
    while chunks:
        now, chunks = cut([], chunks)
        found.append(now)
    return found


def rows(count: int, cell: str = "x") -> str:
    return "| a | b |\n|---|--:|\n" + f"| {cell} | 1 |\n" * count


@pytest.mark.parametrize("mark", ["```python", "~~~", "````"])
def test_code_block_that_must_be_cut_is_closed_and_begun_again(mark: str) -> None:
    code = "".join(f"x = {number}\n" for number in range(4000))
    whole = f"Look:\n\n{mark}\n{code}{mark[:4].rstrip('p')}\nThat was it."
    said = [part["text"] for (part,) in messages([text(whole)])]
    assert len(said) > 3
    assert not any(map(open_fence, said))
    assert max(map(len, said)) < LONGEST + 50
    lines = [line for line in "".join(said).splitlines() if line.startswith("x = ")]
    assert "".join(f"{line}\n" for line in lines) == code
    assert [part.splitlines()[0] for part in said[1:]] == [mark] * (len(said) - 1)


def test_short_code_block_goes_whole_into_the_next_message() -> None:
    first, second = messages([text("word " * 1900 + "\n```\n" + "y\n" * 400 + "```\n")])
    assert first == [text("word " * 1900 + "\n")]
    assert second == [text("```\n" + "y\n" * 400 + "```\n")]
    # One that is said already is closed although the message is full.
    now, rest = cut([text("```\n" + "y" * LONGEST)], [text("more\n```\n")])
    assert (now, rest) == ([text("\n```\n")], [text("```\nmore\n```\n")])


def test_message_has_one_table() -> None:
    chunks = chunks_of(f"One:\n\n{rows(1)}\nTwo:\n\n{rows(2)}\nEnd.")
    first, second = messages(chunks)
    assert [part["type"] for part in first] == ["markdown_text", "blocks", "markdown_text"]
    assert [part["type"] for part in second] == ["blocks", "markdown_text"]
    assert cut([first[1]], [second[0]]) == ([], [second[0]])
    first, second = messages([text("w " * 4500), *chunks_of(rows(90, "long " * 3))])
    assert (first, second[0]["type"]) == ([text("w " * 4500)], "blocks"), "a table without room begins one"


@pytest.mark.parametrize(
    "source",
    [
        "|" + "a|" * 21 + "\n|" + "-|" * 21 + "\n|" + "b|" * 21,
        rows(2, "x" * 6000).rstrip(),
        rows(100).rstrip(),
    ],
    ids=["wide", "long", "high"],
)
def test_table_that_slack_does_not_take_is_code(source: str) -> None:
    assert joined(chunks_of(f"{source}\n")) == [text(f"```\n{source}\n```\n")]


def test_cells_keep_links_and_styles_and_the_fallback_has_their_texts() -> None:
    source = "|a|\n|-|\n| see [the log](https://a.b/c) |\n| **b** `c` |\n| [x](foo) |\n||\n"
    ((_, link, styled, odd, empty),) = [chunk["blocks"][0]["rows"] for chunk in joined(chunks_of(source))]
    assert link[0]["elements"][0]["elements"] == [
        {"type": "text", "text": "see "},
        {"type": "link", "url": "https://a.b/c", "text": "the log"},
    ]
    styles = [each.get("style") for each in styled[0]["elements"][0]["elements"]]
    assert styles == [{"bold": True}, None, {"code": True}]
    for cell, said in ((odd, "x"), (empty, " ")):
        assert cell[0]["elements"][0]["elements"] == [{"type": "text", "text": said}]
    task = {"type": "task_update", "id": "1.1", "title": "weather", "status": "in_progress"}
    plan = [{"type": "plan_update", "title": "Steps"}, task, task | {"status": "complete"}]
    content = content_of([*plan, *chunks_of(f"One:\n{rows(1)}")], [{"type": "divider"}])
    assert content["text"] == "One:\na | b\nx | 1\n"
    assert [block["type"] for block in content["blocks"]] == ["plan", "markdown", "table", "divider"]
    card = {"type": "task_card", "task_id": "1.1", "title": "weather", "status": "complete"}
    assert content["blocks"][0]["tasks"] == [card]


@pytest.mark.parametrize(
    "source",
    [
        *("no | table", "```\n| a |\n|---|\n```\n", "> | a |\n> |---|\n", "a\r|b|\r|-|\rc"),
        *("\u2028| a |\u2028", "", "|", "\n"),
    ],
)
def test_other_text_stays_as_it_is(source: str) -> None:
    assert "".join(chunk["text"] for chunk in chunks_of(source)) == source
    assert chunks_of("| a |\n|---|\n```\n", "```") == [text("| a |\n|---|\n```\n")], "in an open code block"


# Slack reads references, links and escapes in Markdown, but in code it shows all as it is.
MARKDOWN = {
    "if a < b && c > d: R&D <plan>": "if a &lt; b &amp;&amp; c &gt; d: R&amp;D &lt;plan&gt;",
    "&lt; and &amp;lt;": "&amp;lt; and &amp;amp;lt;",
    "> a > b\n> > c\n- > d": "> a &gt; b\n> > c\n- > d",
    "`a < b` & ``c ` < d`` & `e": "`a < b` &amp; ``c ` < d`` &amp; `e",
    "```python\na < b & c\n```\nd < e\n": "```python\na < b & c\n```\nd &lt; e\n",
    "[R&D](https://a.b/?c=1&d=2) & https://a.b/?c&d <https://a.b/?c&d>": (
        "[R&amp;D](https://a.b/?c=1&d=2) &amp; https://a.b/?c&d <https://a.b/?c&d>"
    ),
    "<@U0ADA> in <#C0GENERAL|general>, <@nobody>": "<@U0ADA> in <#C0GENERAL|general>, &lt;@nobody&gt;",
    "| R&D |\n|---|\n| a < b |\n\na < b": "\na &lt; b",
    "| R&D |\n| no table": "| R&amp;D |\n| no table",
}


class Collected(Stream):
    def __init__(self) -> None:
        self.chunks: list[Any] = []

    async def append(self, _: str = "", *, chunks: Any = ()) -> None:
        self.chunks += chunks

    async def stop(self, *, blocks: Any = None) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("said", "sent"), MARKDOWN.items())
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_markdown_of_a_model_is_escaped_however_it_comes(said: str, sent: str, size: int) -> None:
    speech = Speech(Collected())
    for start in range(0, len(said), size):
        await speech.add(said[start : start + size])
    await speech.end()
    assert speech.text == said
    assert isinstance(speech.stream, Collected)
    assert "".join(each.get("text", "") for each in speech.stream.chunks) == sent
    assert "".join(each.get("text", "") for each in chunks_of(said)) == sent


def test_what_is_cut_does_not_end_within_an_escape_or_a_reference() -> None:
    long = "&amp;<@U0ADA00001>" * 900
    parts = [each["text"]["text"] for each in sections(long)]
    assert "".join(parts) == long
    assert "".join(map(typed, parts)) == typed(long)
    assert update_of("x" * 3998 + "&amp;", {})["text"] == "x" * 3998
    (shown,), _ = cut([], [text("x" * (LONGEST - 2) + "&amp;")])
    assert shown["text"] == "x" * (LONGEST - 2)
    assert content_of([text("`a < b` &amp; <@U0ADA>")])["text"] == "`a &lt; b` &amp; <@U0ADA>"


def test_code_stays_code_in_each_section() -> None:
    code = "".join(f"<b>{number}</b>\n" for number in range(700))
    parts = [each["text"]["text"] for each in sections(f"May I?\n```{code}```\nSay so. " + "x" * 3500)]
    assert all(len(part) <= 3000 and part.count("```") % 2 == 0 for part in parts)
    assert "".join(parts).replace("``````", "").count("```") == 2

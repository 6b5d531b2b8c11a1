"""What a model says is divided at good places, and escaped as Slack wants it."""

import asyncio
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from surelane.text import typed
from surelane_agents.reply.shown import is_blank
from surelane_agents.reply.tables import chunks_of
from surelane_agents.reply.voice import Speech
from surelane_dev.simulator.workspace.data_blocks import check_data
from surelane_dev.simulator.workspace.demo import demo_workspace
from surelane_dev.simulator.workspace.typed import slack_text
from surelane_worker.slack.chunks import content_of, cut, joined
from surelane_worker.slack.stream import Stream
from tests.unit.test_slack_chunks import messages, text


def rows(count: int, cell: str = "x") -> str:
    return "| a | b |\n|---|--:|\n" + f"| {cell} | 1 |\n" * count


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
        rows(101).rstrip(),
    ],
    ids=["wide", "long", "high"],
)
def test_table_that_slack_does_not_take_is_code(source: str) -> None:
    assert joined(chunks_of(f"{source}\n")) == [text(f"```\n{source}\n```\n")]


def test_large_table_is_a_data_table_that_sorts_numbers() -> None:
    (block,) = joined(chunks_of("| Who | n |\n|---|---|\n" + "| **a** | 1.5 |\n" * 20))[0]["blocks"]
    check_data(block)
    assert (block["type"], block["caption"], len(block["rows"])) == ("data_table", "20 rows: Who, n", 21)
    assert block["rows"][0] == [{"type": "raw_text", "text": "Who"}, {"type": "raw_text", "text": "n"}]
    assert [cell["type"] for cell in block["rows"][1]] == ["rich_text", "raw_number"]
    assert block["rows"][1][1] == {"type": "raw_number", "value": 1.5, "text": "1.5"}
    (small,) = joined(chunks_of(rows(19)))[0]["blocks"]
    assert small["type"] == "table"


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


@given(st.text(st.sampled_from("&<>;@#!U0C -*~1.\nampltg")), st.integers(1, 9))
@example("&lt;@U0ADA&gt; <@U0ADA> <!channel> a < b", 3)
def test_what_a_model_repeats_is_what_the_person_typed(text: str, size: int) -> None:
    heard = typed(slack_text(demo_workspace(), text))
    stream = Collected()

    async def say() -> None:
        said = Speech(stream)
        for start in range(0, len(heard), size):
            await said.add(heard[start : start + size])
        await said.end()

    asyncio.run(say())
    streamed = typed("".join(each["text"] for each in stream.chunks)).replace("\u200b", "")
    assert streamed == ("" if is_blank(heard) else heard)
    assert typed("".join(each["text"] for each in chunks_of(heard))) == heard

"""What a message says is divided at good places."""

from typing import Any

import pytest

from surelane.text import typed
from surelane_worker.slack.chunks import LONGEST, content_of, cut, open_fence, sections, update_of


def text(said: str) -> dict[str, Any]:
    return {"type": "markdown_text", "text": said}


def messages(chunks: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    found = []
    while chunks:
        now, chunks = cut([], chunks)
        found.append(now)
    return found


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

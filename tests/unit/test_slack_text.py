"""Text in Slack's notation: routes get what a person typed, and what we write is escaped again."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from surelane.text import escaped, escaped_once, shown_beside, text_of, typed

# What Slack sends for what a person typed. A person's name in Slack's report is not what they typed.
TYPED = {
    "a &lt; b &amp;&amp; c &gt; d: R&amp;D &lt;plan&gt;": "a < b && c > d: R&D <plan>",
    "&amp;lt; &amp;amp;": "&lt; &amp;",
    "<https://example.com/?a=1&amp;b=2|the list>": "[the list](https://example.com/?a=1&b=2)",
    "<https://example.com/?a=1&amp;b=2>": "https://example.com/?a=1&b=2",
    "<http://example.com|example.com> <https://a.b/|https://a.b>": "example.com https://a.b",
    "<mailto:a@b.example|a@b.example> <mailto:a@b.example> <tel:+4912|+49 12>": (
        "a@b.example a@b.example [+49 12](tel:+4912)"
    ),
    "<@U0ADA> <@W0ADA|ada> <#C0GENERAL|r&amp;d> <#C0GENERAL|> <#C0GENERAL>": (
        "<@U0ADA> <@W0ADA> <#C0GENERAL|r&d> <#C0GENERAL> <#C0GENERAL>"
    ),
    "<!here> <!channel|channel> <!everyone|@everyone> <!subteam^S0ONCALL|@oncall> <!subteam^S0ONCALL>": (
        "@here @channel @everyone @oncall <!subteam^S0ONCALL>"
    ),
    "<!date^1392734382^{date_num} at {time}^https://a.b/|2014-02-18 &amp; later>": "2014-02-18 & later",
    "a < b and c > d, <b>, <>": "a < b and c > d, <b>, <>",
}


@pytest.mark.parametrize(("sent", "said"), TYPED.items())
def test_text_of_slack_is_read_as_it_was_typed(sent: str, said: str) -> None:
    assert typed(sent) == said


ANY = st.text(st.one_of(st.characters(), st.sampled_from("&<>;|@#!`\nampltgU")))


@given(ANY)
@example("&lt;@U0ADA&gt; <!channel> &amp;amp;")
def test_any_text_comes_back_as_it_was(text: str) -> None:
    assert typed(escaped(text)) == text
    once = escaped_once(text)
    assert escaped_once(once) == once


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("R&D <plan> &amp; a < b", "R&amp;D &lt;plan&gt; &amp; a &lt; b"),
        ("> quoted > here\n>too", "> quoted &gt; here\n>too"),
        ("<@U0ADA> <#C0G|g> <https://a.b/?c&d|e>", "<@U0ADA> <#C0G|g> <https://a.b/?c&d|e>"),
        ("<!here> <!subteam^S0> <@here>", "&lt;!here&gt; &lt;!subteam^S0&gt; &lt;@here&gt;"),
    ],
)
def test_what_means_something_in_slack_stays(written: str, sent: str) -> None:
    assert escaped_once(written) == sent
    assert escaped_once("<!here> < <!subteam^S0|@on>", alarms=True) == "<!here> &lt; <!subteam^S0|@on>"


def test_rich_text_is_read_where_a_message_has_no_text() -> None:
    def text(said: str) -> dict[str, Any]:
        return {"type": "text", "text": said}

    def block(*elements: dict[str, Any], kind: str = "rich_text_section", **more: Any) -> dict[str, Any]:
        return {"type": kind, "elements": list(elements), **more}

    link = {"type": "link", "url": "https://a.b/?c&amp;d"}
    parts = [
        block(text("R&amp;D "), {"type": "user", "user_id": "U0"}, {"type": "emoji", "name": "eyes"}),
        block(block(text("one")), block(link, link | {"text": "two"}), kind="rich_text_list"),
        block(text("a &lt; b"), kind="rich_text_preformatted"),
        block(text("so\nit is"), kind="rich_text_quote"),
        block({"type": "broadcast", "range": "here"}, {"type": "channel", "channel_id": "C0"}),
        block({"type": "usergroup", "usergroup_id": "S0"}, {"type": "date", "fallback": "today"}, {}),
    ]
    said = text_of({"text": "", "blocks": [block(*parts, kind="rich_text"), {"type": "divider"}, 7]})
    assert said == (
        "R&D <@U0>:eyes:\n• one\n• https://a.b/?c&d[two](https://a.b/?c&d)\n```\na < b\n```\n"
        "> so\n> it is\n@here<#C0>\n<!subteam^S0>today"
    )
    assert text_of({"text": "a &lt; b", "blocks": [block(*parts, kind="rich_text")]}) == "a < b"
    assert [text_of(each) for each in ({}, {"text": 5}, {"blocks": {"type": "rich_text"}})] == [""] * 3


BUTTON = {
    "type": "button",
    "text": {"type": "plain_text", "text": "View"},
    "url": "https://g/2",
    "value": "v1",
}
DOWN = {"type": "section", "text": {"type": "mrkdwn", "text": "DB &lt;1&gt; is down"}, "accessory": BUTTON}
RICH = {"type": "rich_text_section", "elements": [{"type": "text", "text": "Name: Bob"}]}
TABLE = {"type": "table", "rows": [[{"type": "raw_text", "text": "a"}, {"type": "raw_text", "text": "b"}]]}
FIELD = {"title": "Severity", "value": "high", "short": True}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            {"bot_id": "B1", "attachments": [{"title": "Job", "text": "failed", "fields": [FIELD]}]},
            "Job failed Severity high",
        ),
        ({"bot_id": "B1", "attachments": [{"fallback": "[FIRING] Job"}]}, "[FIRING] Job"),
        (
            {"attachments": [{"fallback": "[no preview]", "blocks": [DOWN]}]},
            "DB <1> is down View https://g/2",
        ),
        ({"bot_id": "B1", "text": "DB &lt;1&gt; is down", "blocks": [DOWN]}, "View https://g/2"),
        (
            {"bot_id": "B1", "text": "Form", "blocks": [{"type": "rich_text", "elements": [RICH]}]},
            "Name: Bob",
        ),
        ({"text": "Bob", "blocks": [{"type": "rich_text", "elements": [RICH]}, TABLE]}, "a b"),
        ({"attachments": [{"from_url": "https://a.b", "title": "A page", "text": "of others"}]}, ""),
        (
            {
                "attachments": [
                    {"is_share": True, "from_url": "https://a.b", "author_id": "U7", "text": "It burns"}
                ]
            },
            "(Forwarded, by <@U7>:) It burns",
        ),
        ({"text": 5, "blocks": {"a": 1}, "attachments": [7, None, {"fields": [3], "text": 9}]}, ""),
    ],
)
def test_what_a_message_shows_beside_its_text(message: dict[str, Any], shown: str) -> None:
    assert shown_beside(message).replace("\n", " ") == shown

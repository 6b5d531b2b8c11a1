"""The simulator refuses blocks and views as Slack does, and says in Slack's words where the mistake is."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.models.blocks import Block, BlockElement, InteractiveElement

from surelane_dev.simulator.workspace.block_kit import BLOCKS, ELEMENTS, Kind
from tests.system.slack_app import Pair, simulated

JSON = dict[str, Any]
ROOM = "C0GENERAL1"
DIVIDER = {"type": "divider"}


def plain(text: str) -> JSON:
    return {"type": "plain_text", "text": text}


def section(text: str = "Hello", **more: Any) -> JSON:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}, **more}


def button(action_id: str = "go", **more: Any) -> JSON:
    return {"type": "button", "action_id": action_id, "text": plain("Go"), **more}


def actions(*elements: JSON) -> JSON:
    return {"type": "actions", "elements": list(elements)}


def option(number: int = 0, **more: Any) -> JSON:
    return {"text": plain(f"No. {number}"), "value": f"{number}", **more}


def menu(**more: Any) -> JSON:
    return {"type": "static_select", "action_id": "size", "options": [option()], **more}


def asked(element: JSON, **more: Any) -> JSON:
    return {"type": "input", "label": plain("Which"), "element": element, **more}


def cells(*texts: str) -> list[JSON]:
    return [{"type": "raw_text", "text": text} for text in texts]


def table(*rows: list[JSON], **more: Any) -> JSON:
    return {"type": "data_table", "caption": "Sales", "rows": list(rows), **more}


CARD = {"type": "card", "title": plain("A card")}
TYPED = {"type": "plain_text_input", "action_id": "what"}
CONFIRM = {"title": plain("Sure?"), "text": plain("Really"), "confirm": plain("Yes"), "deny": plain("No")}


@pytest.fixture(scope="module")
async def pair() -> AsyncIterator[Pair]:
    async with simulated() as running:
        yield running


async def refused(pair: Pair, blocks: list[Any]) -> list[str]:
    """Post blocks; return what Slack says of them."""
    with pytest.raises(SlackApiError) as caught:
        await pair.web.chat_postMessage(channel=ROOM, text="x", blocks=blocks)
    answer = caught.value.response
    assert answer["error"] == "invalid_blocks"
    assert answer["response_metadata"]["messages"] == [f"[ERROR] {problem}" for problem in answer["errors"]]
    problems: list[str] = answer["errors"]
    return problems


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ({"type": "sektion"}, "unsupported type: sektion [json-pointer:/blocks/0/type]"),
        ({"type": "section"}, "must define either `text` or `fields` [json-pointer:/blocks/0]"),
        (section(""), "must be more than 0 characters [json-pointer:/blocks/0/text/text]"),
        (section("x" * 3001), "must be less than 3001 characters [json-pointer:/blocks/0/text/text]"),
        (section(disabled=True), "invalid additional property: disabled [json-pointer:/blocks/0]"),
        (
            section(accessory=TYPED),
            "unsupported type: plain_text_input [json-pointer:/blocks/0/accessory/type]",
        ),
        (section(fields=[plain("a")] * 11), "no more than 10 items allowed [json-pointer:/blocks/0/fields]"),
        (
            section(fields=[plain("x" * 2001)]),
            "must be less than 2001 characters [json-pointer:/blocks/0/fields/0/text]",
        ),
        (section(block_id="x" * 256), "must be less than 256 characters [json-pointer:/blocks/0/block_id]"),
        ({"type": "section", "text": "x"}, "must provide an object [json-pointer:/blocks/0/text]"),
        (
            {"type": "header", "text": plain("x" * 151)},
            "must be less than 151 characters [json-pointer:/blocks/0/text/text]",
        ),
        (
            {"type": "header", "text": {"type": "mrkdwn", "text": "x"}},
            "must be a valid enum value [json-pointer:/blocks/0/text/type]",
        ),
        (actions(), "no less than 1 items allowed [json-pointer:/blocks/0/elements]"),
        (
            actions(*(button(f"b{number}") for number in range(26))),
            "no more than 25 items allowed [json-pointer:/blocks/0/elements]",
        ),
        (
            actions(button("go"), button("go")),
            "`action_id` go already exists for another element [json-pointer:/blocks/0/elements/1/action_id]",
        ),
        (actions({"type": "knob"}), "unsupported type: knob [json-pointer:/blocks/0/elements/0/type]"),
        (
            actions(button(text=plain("x" * 76))),
            "must be less than 76 characters [json-pointer:/blocks/0/elements/0/text/text]",
        ),
        (
            actions(button(value="x" * 2001)),
            "must be less than 2001 characters [json-pointer:/blocks/0/elements/0/value]",
        ),
        (actions(button(value=1)), "must provide a string [json-pointer:/blocks/0/elements/0/value]"),
        (
            actions(button(style="green")),
            "must be a valid enum value [json-pointer:/blocks/0/elements/0/style]",
        ),
        (
            actions(button(confirm=CONFIRM | {"deny": plain("x" * 31)})),
            "must be less than 31 characters [json-pointer:/blocks/0/elements/0/confirm/deny/text]",
        ),
        (
            actions({"type": "button", "action_id": "go"}),
            "missing required field: text [json-pointer:/blocks/0/elements/0]",
        ),
        (
            actions(menu(options=[option(number) for number in range(101)])),
            "no more than 100 items allowed [json-pointer:/blocks/0/elements/0/options]",
        ),
        (
            actions(menu(options=[option(url="https://a.b")])),
            "invalid additional property: url [json-pointer:/blocks/0/elements/0/options/0]",
        ),
        (
            actions({"type": "overflow", "options": [option(number) for number in range(6)]}),
            "no more than 5 items allowed [json-pointer:/blocks/0/elements/0/options]",
        ),
        (
            actions({"type": "checkboxes", "options": [option(number) for number in range(11)]}),
            "no more than 10 items allowed [json-pointer:/blocks/0/elements/0/options]",
        ),
        (
            actions({"type": "static_select"}),
            "must define either `options` or `option_groups` [json-pointer:/blocks/0/elements/0]",
        ),
        (
            {"type": "context", "elements": [plain("a")] * 11},
            "no more than 10 items allowed [json-pointer:/blocks/0/elements]",
        ),
        (
            {"type": "image", "image_url": "https://a.b/c.png"},
            "missing required field: alt_text [json-pointer:/blocks/0]",
        ),
        (
            {"type": "image", "alt_text": "a"},
            "must define either `image_url` or `slack_file` [json-pointer:/blocks/0]",
        ),
        (asked(button()), "unsupported type: button [json-pointer:/blocks/0/element/type]"),
        (
            asked(TYPED | {"max_length": 3001}),
            "must be less than 3001 [json-pointer:/blocks/0/element/max_length]",
        ),
        (
            asked(TYPED, label=plain("x" * 2001)),
            "must be less than 2001 characters [json-pointer:/blocks/0/label/text]",
        ),
        (
            asked({"type": "number_input"}),
            "missing required field: is_decimal_allowed [json-pointer:/blocks/0/element]",
        ),
        (
            {
                "type": "rich_text",
                "elements": [{"type": "rich_text_section", "elements": [{"type": "text"}]}],
            },
            "missing required field: text [json-pointer:/blocks/0/elements/0/elements/0]",
        ),
        ({"type": "table"}, "a table is malformed [json-pointer:/blocks/0]"),
    ],
)
async def test_a_block_that_slack_refuses(pair: Pair, block: JSON, problem: str) -> None:
    assert await refused(pair, [block]) == [problem]


async def test_every_mistake_is_named(pair: Pair) -> None:
    blocks = [section("", block_id="a"), section("x", block_id="a"), {"type": "header"}]
    assert await refused(pair, blocks) == [
        "must be more than 0 characters [json-pointer:/blocks/0/text/text]",
        "missing required field: text [json-pointer:/blocks/2]",
        "`block_id` a already exists for another block [json-pointer:/blocks/1/block_id]",
    ]


async def test_a_message_has_at_most_fifty_blocks(pair: Pair) -> None:
    assert await refused(pair, [DIVIDER] * 51) == ["no more than 50 items allowed [json-pointer:/blocks]"]
    assert (await pair.web.chat_postMessage(channel=ROOM, text="x", blocks=[DIVIDER] * 50))["ok"]


async def test_all_markdown_of_a_message_together_has_a_bound(pair: Pair) -> None:
    half = {"type": "markdown", "text": "x" * 6_000}
    assert (await pair.web.chat_postMessage(channel=ROOM, text="x", blocks=[half, half]))["ok"]
    with pytest.raises(SlackApiError, match="msg_blocks_too_long"):
        await pair.web.chat_postMessage(channel=ROOM, text="x", blocks=[half, half, half])


async def test_an_update_takes_less_text_than_a_post(pair: Pair) -> None:
    ts = (await pair.web.chat_postMessage(channel=ROOM, text="x" * 40_000))["ts"]
    assert (await pair.web.chat_update(channel=ROOM, ts=ts, text="x" * 4_000))["ok"]
    with pytest.raises(SlackApiError, match="msg_too_long"):
        await pair.web.chat_update(channel=ROOM, ts=ts, text="x" * 4_001)


async def test_each_way_to_post_is_checked(pair: Pair) -> None:
    ts = (await pair.web.chat_postMessage(channel=ROOM, text="x"))["ts"]
    bad = [section("")]
    ada = "U0ADA00001"
    for posting in (
        pair.web.chat_update(channel=ROOM, ts=ts, text="x", blocks=bad),
        pair.web.chat_postEphemeral(channel=ROOM, user=ada, text="x", blocks=bad),
    ):
        with pytest.raises(SlackApiError, match="invalid_blocks"):
            await posting


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        ({"blocks": []}, "missing required field: title [json-pointer:/view]"),
        (
            {"title": plain("x" * 25), "blocks": []},
            "must be less than 25 characters [json-pointer:/view/title/text]",
        ),
        (
            {"title": plain("x"), "blocks": [], "colour": "red"},
            "invalid additional property: colour [json-pointer:/view]",
        ),
        (
            {"title": plain("x"), "blocks": [section("")]},
            "must be more than 0 characters [json-pointer:/view/blocks/0/text/text]",
        ),
        (
            {"title": plain("x"), "blocks": [{"type": "markdown", "text": "x"}]},
            "unsupported type: markdown [json-pointer:/view/blocks/0/type]",
        ),
        (
            {"title": plain("x"), "blocks": [{"type": "alert", "text": plain("x" * 201)}]},
            "must be less than 201 characters [json-pointer:/view/blocks/0/text/text]",
        ),
        (
            {"title": plain("x"), "blocks": [DIVIDER] * 101},
            "no more than 100 items allowed [json-pointer:/view/blocks]",
        ),
        (
            {"title": plain("x"), "blocks": [asked(TYPED)]},
            "must define `submit` to use an `input` block [json-pointer:/view/blocks/0]",
        ),
    ],
)
async def test_a_modal_that_slack_refuses(pair: Pair, view: JSON, problem: str) -> None:
    with pytest.raises(SlackApiError) as caught:
        await pair.web.views_open(trigger_id="x", view={"type": "modal", **view})
    answer = caught.value.response
    assert answer["error"] == "invalid_arguments"
    assert answer["response_metadata"]["messages"] == [f"[ERROR] {problem}"]


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ({"type": "alert", "text": plain("x")}, "unsupported type: alert [json-pointer:/blocks/0/type]"),
        ({"type": "call"}, "missing required field: call_id [json-pointer:/blocks/0]"),
        (CARD | {"colour": "red"}, "invalid additional property: colour [json-pointer:/blocks/0]"),
        (
            {"type": "carousel", "elements": [CARD] * 11},
            "no more than 10 items allowed [json-pointer:/blocks/0/elements]",
        ),
        (
            {"type": "carousel", "elements": [DIVIDER]},
            "unsupported type: divider [json-pointer:/blocks/0/elements/0/type]",
        ),
        (
            {"type": "carousel", "elements": [CARD | {"body": plain("x" * 201)}]},
            "must be less than 201 characters [json-pointer:/blocks/0/elements/0/body/text]",
        ),
        (
            {"type": "container", "child_blocks": [section()]},
            "must define either `title` or `rich_text_title` [json-pointer:/blocks/0]",
        ),
        (
            {"type": "container", "title": plain("x"), "child_blocks": [CARD]},
            "unsupported type: card [json-pointer:/blocks/0/child_blocks/0/type]",
        ),
        (
            {"type": "container", "title": plain("x"), "child_blocks": [section("")]},
            "must be more than 0 characters [json-pointer:/blocks/0/child_blocks/0/text/text]",
        ),
        (
            {"type": "container", "title": plain("x"), "child_blocks": [DIVIDER], "default_collapsed": True},
            "wrong: default_collapsed [json-pointer:/blocks/0]",
        ),
        (table(cells("a")), "no less than 2 items allowed [json-pointer:/blocks/0/rows]"),
        (table(cells("a", "b"), cells("c")), "wrong: rows of one length [json-pointer:/blocks/0]"),
        (
            table(*[cells("a")] * 2, page_size=101),
            "must be less than 101 [json-pointer:/blocks/0/page_size]",
        ),
        (
            {"type": "auth_provider", "value": "x", "name": plain("x")},
            "missing required field: is_connected [json-pointer:/blocks/0]",
        ),
    ],
)
async def test_a_rare_block_that_slack_refuses(pair: Pair, block: JSON, problem: str) -> None:
    assert await refused(pair, [block]) == [problem]


async def test_rare_blocks_that_slack_takes(pair: Pair) -> None:
    blocks: list[JSON] = [
        {"type": "carousel", "elements": [CARD | {"actions": [button()]}] * 10},
        {"type": "container", "title": plain("x"), "child_blocks": [section(), DIVIDER], "width": "wide"},
        table(cells("a", "b"), cells("c", "d"), page_size=5),
        {"type": "auth_provider", "value": "x", "name": plain("x"), "is_connected": False},
        {"type": "call", "call_id": "R1"},
    ]
    assert (await pair.web.chat_postMessage(channel=ROOM, text="x", blocks=blocks))["ok"]


@pytest.mark.parametrize(
    ("attachments", "error", "problem"),
    [
        (
            [{"text": "x"}, {"blocks": [DIVIDER, section("")]}],
            "invalid_attachments",
            "must be more than 0 characters [json-pointer:/attachments/1/blocks/1/text/text]",
        ),
        (
            [{"blocks": "x"}],
            "invalid_attachments",
            "must provide an array [json-pointer:/attachments/0/blocks]",
        ),
        ([{"text": "x"}] * 101, "too_many_attachments", None),
    ],
)
async def test_attachments_that_slack_refuses(
    pair: Pair, attachments: list[JSON], error: str, problem: str | None
) -> None:
    with pytest.raises(SlackApiError) as caught:
        await pair.web.chat_postMessage(channel=ROOM, text="x", attachments=attachments)
    answer = caught.value.response
    assert answer["error"] == error
    assert answer.get("response_metadata") == (problem and {"messages": [f"[ERROR] {problem}"]})


async def test_blocks_of_attachments_get_ids(pair: Pair) -> None:
    posted = await pair.web.chat_postMessage(
        channel=ROOM, text="x", attachments=[{"color": "#36a64f", "blocks": [section()]}]
    )
    (attachment,) = posted["message"]["attachments"]
    assert attachment["blocks"][0]["block_id"]


async def test_what_slack_takes(pair: Pair) -> None:
    blocks = [
        section(accessory=button("a", url="https://a.b", confirm=CONFIRM)),
        section(fields=[plain("a")] * 10),
        actions(menu(), button("b"), {"type": "datepicker", "action_id": "d", "initial_date": "2026-01-31"}),
        actions(menu(options=None, option_groups=[{"label": plain("All"), "options": [option()]}])),
        actions({"type": "overflow", "options": [option(url="https://a.b")]}),
        asked({"type": "number_input", "is_decimal_allowed": False, "min_value": "-1.5"}, hint=plain("x")),
        {"type": "context", "elements": [plain("a"), {"type": "mrkdwn", "text": "b", "verbatim": True}]},
        {"type": "image", "image_url": "https://a.b/c.png", "alt_text": "a", "title": plain("b")},
        {"type": "markdown", "text": "# Title"},
    ]
    assert (await pair.web.chat_postMessage(channel=ROOM, text="x", blocks=blocks))["ok"]


def _below(model: type[Any]) -> list[type[Any]]:
    return [found for each in model.__subclasses__() for found in (each, *_below(each))]


@pytest.mark.parametrize(("base", "kinds"), [(Block, BLOCKS), (BlockElement, ELEMENTS)])
def test_the_rules_have_each_field_that_slacks_library_sends(base: type[Any], kinds: dict[str, Kind]) -> None:
    compared = 0
    for model in _below(base):
        kind = kinds.get(str(getattr(model, "type", None)))
        if kind is None or kind.open:
            continue
        sent = object.__new__(model).attributes - {"type", "block_id"}
        if issubclass(model, InteractiveElement):
            # the base classes name them for all elements
            sent -= {"alt_text", "confirm", "focus_on_load", "placeholder"}
        assert sent <= {*kind.required, *kind.optional}, model
        compared += 1
    assert compared > 5

"""The simulator refuses blocks and views as Slack does, and gives what a person enters Slack's form."""

from collections.abc import Mapping
from typing import Any

import pytest

from surelane_dev.simulator.state import EMAIL, NUMBER, REQUIRED, URL, NotOfferedError, mistakes, state_of
from surelane_dev.simulator.workspace.block_kit import BLOCKS, ELEMENTS
from surelane_dev.simulator.workspace.block_rules import Fields
from surelane_dev.simulator.workspace.blocks import identified, view_problems
from surelane_dev.simulator.workspace.data_blocks import BadBlocksError
from surelane_dev.simulator.workspace.model import JSON

DIVIDER = {"type": "divider"}


LESS, MOST = "must be less than {} characters", "no more than {} items allowed"
LACKS, EXTRA = "missing required field: {}", "invalid additional property: {}"
WORD = "must be a valid enum value"
EITHER, UNKNOWN = "must define either `{}` or `{}`", "unsupported type: {}"


def plain(text: str) -> JSON:
    return {"type": "plain_text", "text": text}


def section(text: str = "Hello", **more: Any) -> JSON:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}, **more}


def button(action_id: str = "go", **more: Any) -> JSON:
    return {"type": "button", "action_id": action_id, "text": plain("Go"), **more}


def actions(*elements: JSON) -> JSON:
    return {"type": "actions", "elements": list(elements)}


def element(kind: str, **more: Any) -> JSON:
    return actions({"type": kind, **more})


def options(count: int = 1, **more: Any) -> list[JSON]:
    return [{"text": plain(f"No. {number}"), "value": f"{number}", **more} for number in range(count)]


def menu(**more: Any) -> JSON:
    return {"type": "static_select", "action_id": "size", "options": options(), **more}


def asked(of: JSON, **more: Any) -> JSON:
    return {"type": "input", "label": plain("Which"), "element": of, **more}


def cells(*texts: str) -> list[JSON]:
    return [{"type": "raw_text", "text": text} for text in texts]


def data_table(*rows: list[JSON], **more: Any) -> JSON:
    return {"type": "data_table", "caption": "Sales", "rows": list(rows), **more}


def table(*rows: list[Any], **more: Any) -> JSON:
    return {"type": "table", "rows": list(rows), **more}


def container(*blocks: JSON, **more: Any) -> JSON:
    return {"type": "container", "title": plain("x"), "child_blocks": list(blocks), **more}


def carousel(*cards: JSON) -> JSON:
    return {"type": "carousel", "elements": list(cards)}


def chart(of: JSON, title: str = "Tickets") -> JSON:
    return {"type": "data_visualization", "title": title, "chart": of}


CARD = {"type": "card", "title": plain("A card")}
TYPED = {"type": "plain_text_input", "action_id": "what"}
CONFIRM = {"title": plain("Sure?"), "text": plain("Really"), "confirm": plain("Yes"), "deny": plain("No")}
PIE: JSON = {"type": "pie", "segments": [{"label": "a", "value": 1}]}
SERIES = [{"name": "a", "data": [{"label": "Mon", "value": 1}]}]
BARS: JSON = {"type": "bar", "series": SERIES, "axis_config": {"categories": ["Mon"]}}
TASK = {"type": "task_card", "task_id": "1", "title": "Look", "status": "complete"}
RICH = {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": [{"type": "text"}]}]}
LINK = "https://a.b/c.png"


def problems(*blocks: Any) -> list[str]:
    """Return what Slack says of a message's blocks, and where."""
    with pytest.raises(BadBlocksError) as caught:
        identified(blocks)
    return [problem.replace("json-pointer:/blocks", "") for problem in caught.value.args]


@pytest.mark.parametrize(
    ("block", "at", "problem"),
    [
        ({"type": "sektion"}, "/type", UNKNOWN.format("sektion")),
        ({"type": "section"}, "", EITHER.format("text", "fields")),
        (section(""), "/text/text", "must be more than 0 characters"),
        (section("x" * 3001), "/text/text", LESS.format(3001)),
        (section(disabled=True), "", EXTRA.format("disabled")),
        (section(accessory=TYPED), "/accessory/type", UNKNOWN.format("plain_text_input")),
        (section(fields=[plain("a")] * 11), "/fields", MOST.format(10)),
        (section(fields=[plain("x" * 2001)]), "/fields/0/text", LESS.format(2001)),
        (section(block_id="x" * 256), "/block_id", LESS.format(256)),
        ({"type": "section", "text": "x"}, "/text", "must provide an object"),
        ({"type": "header", "text": plain("x" * 151)}, "/text/text", LESS.format(151)),
        ({"type": "header", "text": {"type": "mrkdwn", "text": "x"}}, "/text/type", WORD),
        (actions(), "/elements", "no less than 1 items allowed"),
        (actions(*(button(f"b{number}") for number in range(26))), "/elements", MOST.format(25)),
        (
            actions(button("go"), button("go")),
            "/elements/1/action_id",
            "`action_id` go already exists for another element",
        ),
        (element("knob"), "/elements/0/type", UNKNOWN.format("knob")),
        (actions(button(text=plain("x" * 76))), "/elements/0/text/text", LESS.format(76)),
        (actions(button(value="x" * 2001)), "/elements/0/value", LESS.format(2001)),
        (actions(button(value=1)), "/elements/0/value", "must provide a string"),
        (actions(button(style="green")), "/elements/0/style", WORD),
        (
            actions(button(confirm=CONFIRM | {"deny": plain("x" * 31)})),
            "/elements/0/confirm/deny/text",
            LESS.format(31),
        ),
        (element("button", action_id="go"), "/elements/0", LACKS.format("text")),
        (actions(menu(options=options(101))), "/elements/0/options", MOST.format(100)),
        (actions(menu(options=options(url=LINK))), "/elements/0/options/0", EXTRA.format("url")),
        (element("overflow", options=options(6)), "/elements/0/options", MOST.format(5)),
        (element("checkboxes", options=options(11)), "/elements/0/options", MOST.format(10)),
        (element("static_select"), "/elements/0", EITHER.format("options", "option_groups")),
        ({"type": "context", "elements": [plain("a")] * 11}, "/elements", MOST.format(10)),
        ({"type": "image", "image_url": LINK}, "", LACKS.format("alt_text")),
        ({"type": "image", "alt_text": "a"}, "", EITHER.format("image_url", "slack_file")),
        (asked(button()), "/element/type", UNKNOWN.format("button")),
        (asked(TYPED | {"max_length": 3001}), "/element/max_length", "must be less than 3001"),
        (asked(TYPED, label=plain("x" * 2001)), "/label/text", LESS.format(2001)),
        (asked({"type": "number_input"}), "/element", LACKS.format("is_decimal_allowed")),
        (RICH, "/elements/0/elements/0", LACKS.format("text")),
        ({"type": "table"}, "", "a table is malformed"),
        ({"type": "alert", "text": plain("x")}, "/type", UNKNOWN.format("alert")),
        ({"type": "call"}, "", LACKS.format("call_id")),
        (CARD | {"colour": "red"}, "", EXTRA.format("colour")),
        (carousel(*[CARD] * 11), "/elements", MOST.format(10)),
        (carousel(DIVIDER), "/elements/0/type", UNKNOWN.format("divider")),
        (carousel(CARD | {"body": plain("x" * 201)}), "/elements/0/body/text", LESS.format(201)),
        ({"type": "container", "child_blocks": [section()]}, "", EITHER.format("title", "rich_text_title")),
        (container(CARD), "/child_blocks/0/type", UNKNOWN.format("card")),
        (container(section("")), "/child_blocks/0/text/text", "must be more than 0 characters"),
        (container(DIVIDER, default_collapsed=True), "", "wrong: default_collapsed"),
        (data_table(cells("a")), "/rows", "no less than 2 items allowed"),
        (data_table(cells("a", "b"), cells("c")), "", "wrong: rows of one length"),
        (data_table(*[cells("a")] * 2, page_size=101), "/page_size", "must be less than 101"),
        (data_table(cells("a"), cells("x" * 10_001)), "", "wrong: a table's length"),
        ({"type": "auth_provider", "value": "x", "name": plain("x")}, "", LACKS.format("is_connected")),
    ],
)
def test_a_block_that_slack_refuses(block: JSON, at: str, problem: str) -> None:
    assert problems(block) == [f"{problem} [/0{at}]"]


@pytest.mark.parametrize(
    "block",
    [
        table(),
        table(*[cells("x")] * 101),
        table(cells("x") * 21),
        table(cells("")),
        table(cells("x" * 10_001)),
        table([1]),
        table(cells("x"), column_settings=[{"align": "top"}]),
        chart(PIE, "x" * 51),
        chart({"type": "pie", "segments": [{"label": "a", "value": 0}]}),
        chart({"type": "pie", "segments": PIE["segments"] * 7}),
        chart({"type": "radar"}),
        chart(BARS | {"axis_config": {"categories": ["Tue"]}}),
        chart(BARS | {"series": SERIES * 2}),
        {"type": "card"},
        {"type": "card", "body": {"type": "mrkdwn", "text": "x" * 201}},
        {"type": "plan", "title": "Steps", "tasks": [TASK | {"status": "done"}]},
        TASK | {"sources": [{"type": "url", "url": "https://a.b"}]},
    ],
)
def test_data_that_slack_refuses(block: JSON) -> None:
    assert len(problems(block)) == 1


def test_every_mistake_is_named() -> None:
    assert problems(section("", block_id="a"), section("x", block_id="a"), {"type": "header"}) == [
        "must be more than 0 characters [/0/text/text]",
        "missing required field: text [/2]",
        "`block_id` a already exists for another block [/1/block_id]",
    ]
    assert problems(*[DIVIDER] * 51) == [f"{MOST.format(50)} []"]


@pytest.mark.parametrize(
    ("view", "at", "problem"),
    [
        ({"title": None}, "", LACKS.format("title")),
        ({"title": plain("x" * 25)}, "/title/text", LESS.format(25)),
        ({"colour": "red"}, "", EXTRA.format("colour")),
        ({"private_metadata": "x" * 3001}, "/private_metadata", LESS.format(3001)),
        ({"blocks": [section("")]}, "/blocks/0/text/text", "must be more than 0 characters"),
        ({"blocks": [{"type": "markdown", "text": "x"}]}, "/blocks/0/type", UNKNOWN.format("markdown")),
        ({"blocks": [{"type": "alert", "text": plain("x" * 201)}]}, "/blocks/0/text/text", LESS.format(201)),
        ({"blocks": [DIVIDER] * 101}, "/blocks", MOST.format(100)),
        ({"blocks": [asked(TYPED)]}, "/blocks/0", "must define `submit` to use an `input` block"),
        ({"type": "home"}, "/type", "expected a view of type modal"),
    ],
)
def test_a_modal_that_slack_refuses(view: JSON, at: str, problem: str) -> None:
    modal = {"type": "modal", "title": plain("x"), "blocks": [], **view}
    assert list(view_problems(modal, "modal")) == [f"{problem} [json-pointer:/view{at}]"]


def test_what_slack_takes() -> None:
    blocks = [
        section(accessory=button("a", url=LINK, confirm=CONFIRM)),
        section(fields=[plain("a")] * 10),
        actions(menu(), button("b"), {"type": "datepicker", "action_id": "d", "initial_date": "2026-01-31"}),
        actions(menu(options=None, option_groups=[{"label": plain("All"), "options": options()}])),
        element("overflow", options=options(url=LINK)),
        asked({"type": "number_input", "is_decimal_allowed": False, "min_value": "-1.5"}, hint=plain("x")),
        {"type": "context", "elements": [plain("a"), {"type": "mrkdwn", "text": "b", "verbatim": True}]},
        {"type": "image", "image_url": LINK, "alt_text": "a", "title": plain("b")},
        {"type": "markdown", "text": "# Title"},
        carousel(*[CARD | {"actions": [button()]}] * 10),
        container(section(), DIVIDER, width="wide"),
        data_table(cells("a", "b"), cells("c", "d"), page_size=5),
        {"type": "auth_provider", "value": "x", "name": plain("x"), "is_connected": False},
        {"type": "call", "call_id": "R1"},
        table(*[cells("x") * 20] * 100, column_settings=[{"align": "right"}, None]),
        *(chart(PIE), chart(BARS), {"type": "card", "title": {"type": "mrkdwn", "text": "x"}}),
        *({"type": "plan", "title": "Steps", "tasks": [TASK]}, TASK),
        *[DIVIDER] * 30,
    ]
    assert len(identified(blocks)) == 50


def below(model: type[Any]) -> list[type[Any]]:
    return [found for each in model.__subclasses__() for found in (each, *below(each))]


@pytest.mark.parametrize(("base", "kinds"), [("Block", BLOCKS), ("BlockElement", ELEMENTS)])
def test_the_rules_have_each_field_that_slacks_library_sends(base: str, kinds: dict[str, Fields]) -> None:
    from slack_sdk.models import blocks  # noqa: PLC0415 - slow to import

    compared = 0
    for model in below(getattr(blocks, base)):
        kind = kinds.get(str(getattr(model, "type", None)))
        if kind is None or kind.open:
            continue
        sent = object.__new__(model).attributes - {"type", "block_id"}
        if issubclass(model, blocks.InteractiveElement):
            # the base classes name them for all elements
            sent -= {"alt_text", "confirm", "focus_on_load", "placeholder"}
        assert sent <= {*kind.required, *kind.optional}, model
        compared += 1
    assert compared > 5


def option(value: str) -> JSON:
    return {"text": plain(value.upper()), "value": value}


A, B = option("a"), option("b")


def state_asked(element: JSON, entered: object = None, offered: Mapping[str, JSON] | None = None) -> JSON:
    """Return the state of one input."""
    block = {"type": "input", "block_id": "b", "element": {"action_id": "x", **element}}
    state = state_of([block], {"b": {"x": entered}}, lambda *_: offered or {})
    value: JSON = state["values"]["b"]["x"]
    return {name: found for name, found in value.items() if name != "type"}


@pytest.mark.parametrize(
    ("element", "entered", "value"),
    [
        ({"type": "plain_text_input"}, "hi", {"value": "hi"}),
        ({"type": "plain_text_input"}, "", {"value": None}),
        ({"type": "plain_text_input", "initial_value": "so"}, None, {"value": "so"}),
        ({"type": "static_select", "options": [A, B]}, "b", {"selected_option": B}),
        ({"type": "static_select", "options": [A, B]}, None, {"selected_option": None}),
        ({"type": "static_select", "options": [A, B], "initial_option": A}, None, {"selected_option": A}),
        ({"type": "static_select", "option_groups": [{"options": [A]}]}, "a", {"selected_option": A}),
        ({"type": "multi_static_select", "options": [A, B]}, ["a", "b"], {"selected_options": [A, B]}),
        ({"type": "checkboxes", "options": [A, B], "initial_options": [B]}, None, {"selected_options": [B]}),
        ({"type": "checkboxes", "options": [A, B], "initial_options": [B]}, [], {"selected_options": []}),
        ({"type": "radio_buttons", "options": [A]}, "a", {"selected_option": A}),
        ({"type": "users_select"}, "U1", {"selected_user": "U1"}),
        ({"type": "multi_users_select"}, ["U1"], {"selected_users": ["U1"]}),
        ({"type": "conversations_select"}, "C1", {"selected_conversation": "C1"}),
        ({"type": "multi_channels_select"}, None, {"selected_channels": []}),
        ({"type": "datepicker"}, "2026-01-02", {"selected_date": "2026-01-02"}),
        ({"type": "timepicker", "initial_time": "10:30"}, None, {"selected_time": "10:30"}),
        ({"type": "datetimepicker"}, "1700000000", {"selected_date_time": 1700000000}),
        ({"type": "plain_text_input"}, {"value": "in Slack's form"}, {"value": "in Slack's form"}),
    ],
)
def test_values_have_slacks_form(element: JSON, entered: object, value: JSON) -> None:
    assert state_asked(element, entered) == value


def test_an_external_menu_offers_what_the_app_answered() -> None:
    menu = {"type": "external_select"}
    assert state_asked(menu, "a", {"a": A}) == {"selected_option": A}
    with pytest.raises(NotOfferedError):
        state_asked(menu, "b", {"a": A})


@pytest.mark.parametrize(
    ("element", "entered", "mistake"),
    [
        ({"type": "plain_text_input"}, "", REQUIRED),
        ({"type": "checkboxes", "options": [A]}, [], REQUIRED),
        ({"type": "plain_text_input", "min_length": 3}, "no", "Please enter at least 3 characters."),
        ({"type": "plain_text_input", "max_length": 3}, "long", "Please enter at most 3 characters."),
        ({"type": "plain_text_input"}, "x" * 3001, "Please enter at most 3000 characters."),
        ({"type": "email_text_input"}, "ada", EMAIL),
        ({"type": "email_text_input"}, "ada@example.com", None),
        ({"type": "url_text_input"}, "example", URL),
        ({"type": "url_text_input"}, "https://example.com", None),
        ({"type": "number_input", "is_decimal_allowed": False}, "1.5", NUMBER),
        ({"type": "number_input", "is_decimal_allowed": True}, "1.5", None),
        ({"type": "number_input", "is_decimal_allowed": True}, "NaN", NUMBER),
        ({"type": "number_input", "min_value": "3"}, "2", "Please enter a number not below 3."),
        ({"type": "number_input", "max_value": "3"}, "4", "Please enter a number not above 3."),
        (
            {"type": "multi_static_select", "options": [A, B], "max_selected_items": 1},
            ["a", "b"],
            "Please choose at most 1.",
        ),
    ],
)
def test_slacks_client_finds_mistakes(element: JSON, entered: object, mistake: str | None) -> None:
    blocks: list[JSON] = [{"type": "input", "block_id": "b", "element": {"action_id": "x", **element}}]
    state = state_of(blocks, {"b": {"x": entered}}, lambda *_: {})
    assert mistakes(blocks, state) == ({"b": mistake} if mistake else {})


def test_an_optional_input_may_be_empty_and_an_action_is_no_input() -> None:
    text = {"type": "plain_text_input", "action_id": "x"}
    picker = {"type": "datepicker", "action_id": "y"}
    blocks: list[JSON] = [
        {"type": "input", "block_id": "a", "element": text, "optional": True},
        {"type": "actions", "block_id": "b", "elements": [picker, {"type": "button", "action_id": "z"}]},
    ]
    state = state_of(blocks, {}, lambda *_: {})
    assert state["values"] == {
        "a": {"x": {"type": "plain_text_input", "value": None}},
        "b": {"y": {"type": "datepicker", "selected_date": None}},
    }
    assert mistakes(blocks, state) == {}

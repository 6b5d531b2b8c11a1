"""What a person enters takes Slack's form, and Slack's client checks it before it asks the app."""

from collections.abc import Mapping

import pytest

from surelane_dev.simulator.state import EMAIL, NUMBER, REQUIRED, URL, NotOfferedError, mistakes, state_of
from surelane_dev.simulator.workspace.model import JSON


def option(value: str) -> JSON:
    return {"text": {"type": "plain_text", "text": value.upper()}, "value": value}


A, B = option("a"), option("b")


def asked(element: JSON, entered: object = None, offered: Mapping[str, JSON] | None = None) -> JSON:
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
    assert asked(element, entered) == value


def test_an_external_menu_offers_what_the_app_answered() -> None:
    menu = {"type": "external_select"}
    assert asked(menu, "a", {"a": A}) == {"selected_option": A}
    with pytest.raises(NotOfferedError):
        asked(menu, "b", {"a": A})


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

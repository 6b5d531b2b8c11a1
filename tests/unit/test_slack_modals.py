"""A modal that is shown again has what the person entered."""

from typing import Any

import pytest

from surelane_worker.slack.modals import late_view

OPTION = {"text": {"type": "plain_text", "text": "One"}, "value": "1"}


@pytest.mark.parametrize(
    ("entered", "initial"),
    [
        ({"type": "plain_text_input", "value": "it"}, {"initial_value": "it"}),
        ({"type": "plain_text_input", "value": None}, {}),
        ({"type": "rich_text_input", "rich_text_value": {"a": 1}}, {"initial_value": {"a": 1}}),
        ({"type": "static_select", "selected_option": OPTION}, {"initial_option": OPTION}),
        ({"type": "checkboxes", "selected_options": [OPTION]}, {"initial_options": [OPTION]}),
        ({"type": "datepicker", "selected_date": "2026-01-01"}, {"initial_date": "2026-01-01"}),
        ({"type": "multi_users_select", "selected_users": ["U1"]}, {"initial_users": ["U1"]}),
        ({"type": "file_input", "files": [{"id": "F1"}]}, {}),
    ],
)
def test_what_was_entered_is_the_initial_value(entered: dict[str, Any], initial: dict[str, Any]) -> None:
    element = {"type": entered["type"], "action_id": "a"}
    block = {"type": "input", "block_id": "b", "element": element | {"initial_value": "old"}}
    view = {"id": "V1", "type": "modal", "title": {"type": "plain_text", "text": "T"}, "close": None}
    state = {"state": {"values": {"b": {"a": entered}}}}
    answer = {"response_action": "errors", "errors": {"b": "Wrong."}}
    late = late_view({**view, **state, "blocks": [block]}, answer)
    assert late["blocks"][0]["element"] == element | initial
    assert late["blocks"][1]["block_id"] == "surelane.error:b"
    assert late.keys() == {"type", "title", "blocks"}

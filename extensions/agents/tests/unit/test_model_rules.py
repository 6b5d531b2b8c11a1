"""Whose rules hold for an event, and how a rule is stored."""

from collections.abc import Mapping
from typing import Any

import pytest

from surelane_agents.people import rules
from surelane_agents.people.board import LONGEST, about, cleaned
from surelane_worker.handling.registry import Handlers, registered_in
from tests.unit.test_slack_tokens import event

MESSAGE = {"type": "app_mention", "channel": "C1", "user": "U1", "ts": "1.1"}
SHARED = {
    "type": "event_callback",
    "team_id": "T2",
    "is_ext_shared_channel": True,
    "authorizations": [{"team_id": "T1", "user_id": "UBOT"}],
    "event": MESSAGE,
}
WIDE = {**SHARED, "authorizations": [{"enterprise_id": "E1", "team_id": None, "is_enterprise_install": True}]}
PERSON = {"team": {"id": "T1"}, "user": {"id": "U1"}}


@pytest.mark.parametrize(
    ("payload", "ids"),
    [
        ({**SHARED, "team_id": "T1"}, ["T1", "C1", "U1"]),
        (SHARED, ["T1", "C1", "U1"]),  # the author's workspace is another one
        (WIDE, ["T2", "C1", "U1"]),
        ({"command": "/rules", "team_id": "T1", "channel_id": "C1", "user_id": "U1"}, ["T1", "C1", "U1"]),
        ({"type": "view_submission", **PERSON, "view": {"private_metadata": "C1"}}, ["T1", "C1", "U1"]),
        ({"type": "view_submission", **PERSON, "view": {"private_metadata": "C1 U1:7"}}, ["T1", "C1", "U1"]),
        ({"team_id": "T1", "text": "a job"}, ["T1", "", ""]),
        ({"team": "T1", "user": "U1"}, ["T1", "", "U1"]),  # of an agent that another one asks
        ({}, ["", "", ""]),
    ],
)
def test_rules_are_of_the_workspace_that_has_the_app(payload: Mapping[str, Any], ids: list[str]) -> None:
    assert about(event(payload)) == ids


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        (" Answer\n in\tFrench. ", "Answer in French."),
        ("\u200b\u202e\x00", ""),
        ("say \u00abno\u00bb \u201cplease\u201d", "say 'no' 'please'"),
        ("<\u200b!here>", "<\u200b!here>"),  # what hides the alarm is taken out, and put in again
        ("auf Deutsch, gr\u00fc\u00df dich \U0001f600", "auf Deutsch, gr\u00fc\u00df dich \U0001f600"),
        ("x" * 1000, "x" * LONGEST),
    ],
)
def test_a_rule_is_stored_as_one_line_of_what_can_be_seen(written: str, stored: str) -> None:
    assert cleaned(written) == stored


def test_a_team_includes_the_handlers_under_a_name_of_its_own() -> None:
    handlers = Handlers()
    handlers.include(rules.handlers)
    handlers.command("/agent-rules")(rules.show)
    kinds = set(registered_in(handlers).by_kind())
    interactions = {"slack.view_submission", "slack.block_actions"}
    assert kinds == {"slack.command.rules", "slack.command.agent-rules"} | interactions

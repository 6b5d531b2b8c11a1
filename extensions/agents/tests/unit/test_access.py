"""What lists of who may use an agent mean, and what ``users.info`` says that somebody is."""

from typing import Any, cast

import pytest

from surelane.errors import SettingsError
from surelane.slack import reporter_of
from surelane_agents import Tools
from surelane_agents.agent_settings import AgentSettings
from surelane_agents.people.access import Asker, allow, sort_of
from surelane_service.service_settings import load_settings

OWN = {"team_id": "T1"}
GRID = {"team_id": "T1", "enterprise_id": "E1"}
WIDE = {"enterprise_id": "E1", "is_enterprise_install": True}


def asker(sort: str, *groups: str, asked: bool = True) -> Asker:
    who = {"asked": asked, "id": "U1A", "sort": sort, "groups": [*groups]}
    return cast("Asker", who | dict.fromkeys(("name", "title", "zone", "time"), ""))


@pytest.mark.parametrize(
    ("listed", "permitted"),
    [
        ("everyone", {"members", "guests", "external", "bots", "unknown"}),
        ("members, guests", {"members", "guests"}),
        (["bots"], {"bots"}),
        ("C1A", {"members"}),
        ("C1A,everyone", {"members", "guests", "external", "bots", "unknown"}),
        ("C2B, everyone", set()),
        ("direct,everyone", set()),
        ("U1A", {"members", "guests", "external", "bots", "unknown"}),
        ("U2B", set()),
        ("S1A", set()),
    ],
)
def test_who_is_permitted_in_a_channel(listed: Any, permitted: set[str]) -> None:
    sorts = "members", "guests", "external", "bots", "unknown", "gone"
    assert {each for each in sorts if allow(listed).permits(asker(each), "C1A")} == permitted


def test_groups_direct_messages_and_jobs_of_the_team() -> None:
    assert allow("S1A").permits(asker("guests", "S1A"), "C1A")
    assert allow("direct").permits(asker("members"), "D1A")
    assert not allow("direct").permits(asker("guests"), "D1A")
    assert allow("U2B, C2B").permits(asker("unknown", asked=False), None)


@pytest.mark.parametrize("wrong", ["", " , ", "guest", "U1A,lower", "#general", "@ada"])
def test_a_list_that_means_nothing_is_an_error_at_start(wrong: str) -> None:
    with pytest.raises(ValueError, match="write ids or bots, direct"):
        allow(wrong)
    with pytest.raises(ValueError, match="write ids or"):
        Tools().add(allow=wrong)(print)
    if wrong:  # an empty variable is not set
        with pytest.raises(SettingsError, match="SURELANE_MODEL_ALLOW"):
            load_settings(AgentSettings, SURELANE_MODEL_ALLOW=wrong)


@pytest.mark.parametrize(
    ("user", "payload", "sort"),
    [
        ({"team_id": "T1"}, OWN, "members"),
        ({"team_id": "T1", "is_ultra_restricted": True}, OWN, "guests"),
        ({"team_id": "T2"}, OWN, "external"),
        ({"team_id": "T1", "is_stranger": True}, OWN, "external"),
        ({"team_id": "T2", "is_bot": True}, OWN, "bots"),
        ({"team_id": "T2", "enterprise_user": {"enterprise_id": "E1"}}, GRID, "members"),
        ({"team_id": "T2", "enterprise_user": {"enterprise_id": "E2"}}, GRID, "external"),
        (
            {"team_id": "T2", "enterprise_user": {"enterprise_id": "E1"}, "is_restricted": True},
            WIDE,
            "guests",
        ),
        ({"team_id": "T1"}, {}, "unknown"),
        ({}, OWN, "unknown"),
        ({"team_id": "T1", "deleted": True}, OWN, "gone"),
    ],
)
def test_what_slack_says_somebody_is(user: Any, payload: Any, sort: str) -> None:
    enterprise, workspace, _ = reporter_of(payload)
    assert sort_of(user, {enterprise, workspace} - {None}) == sort

"""The example of a database by CloudNativePG is valid, and makes the accounts that accounts.sql makes."""

import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import yaml

from tests.deploy.commands import ROOT
from tests.deploy.compose import database_settings

CLUSTER: dict[str, Any] = yaml.safe_load((ROOT / "examples/cloudnativepg/cluster.yaml").read_text())
SCHEMA = yaml.safe_load((ROOT / "tests/deploy/cloudnativepg.schema.yaml").read_text())
ACCOUNTS = (ROOT / "k8s/components/timescaledb/accounts.sql").read_text()
SPEC = CLUSTER["spec"]


def test_it_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(CLUSTER, SCHEMA)


def test_no_acknowledged_event_is_lost_with_it_and_its_log_has_no_text_of_one() -> None:
    assert SPEC["instances"] >= 3
    assert SPEC["postgresql"]["synchronous"] == {"method": "any", "number": 1, "dataDurability": "required"}
    assert SPEC["postgresql"]["parameters"] == database_settings("log_")


def test_its_accounts_are_those_of_every_other_database() -> None:
    statements = SPEC["bootstrap"]["initdb"]["postInitApplicationSQL"]
    made = {each["name"]: each["inRoles"] for each in SPEC["managed"]["roles"]}
    logins = re.findall(r"^create role (\w+) login password", ACCOUNTS, re.MULTILINE)
    assert made == {login: [login.replace("surelane", "agent")] for login in logins}
    for login, (group,) in made.items():
        assert f"grant {group} to {login};" in ACCOUNTS
    for role in re.findall(r"^create role (\w+) nologin;", ACCOUNTS, re.MULTILINE):
        assert f"create role {role} nologin" in statements
    for grant in re.findall(r"^(grant .* to surelane(?: .*)?);", ACCOUNTS, re.MULTILINE):
        assert grant in statements
    connect = re.search(r"grant connect on database %I (to [\w, ]+)", ACCOUNTS)
    assert connect
    assert f"grant connect on database surelane {connect[1]}" in statements

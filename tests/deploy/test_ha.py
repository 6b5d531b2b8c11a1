"""Servers that stand by, under Patroni and by CloudNativePG, lose nothing acknowledged, and log no text."""

import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import yaml

from tests.deploy.commands import ROOT, version
from tests.deploy.compose import PRODUCTION, SECRETS, config, database_settings

SERVERS = ("db1", "db2", "db3")
PATRONI: dict[str, Any] = yaml.safe_load((ROOT / "compose/ha/patroni.yaml").read_text())


def services() -> dict[str, Any]:
    read: dict[str, Any] = config(PRODUCTION, "compose/ha.yaml", env=SECRETS)["services"]
    return read


def test_three_servers_and_etcd_take_the_place_of_one_and_every_service_wants_the_primary() -> None:
    assert set(services()) == {"settings", "migrate", "ingest", "worker", "operator", *SERVERS, "etcd"}
    assert services()["etcd"]["depends_on"]["settings"]["condition"] == "service_completed_successfully"
    for name in SERVERS:
        assert services()[name]["environment"]["PATRONI_NAME"] == name
        assert services()["migrate"]["depends_on"][name]["condition"] == "service_healthy"
    assert len({services()[name]["volumes"][0]["source"] for name in SERVERS}) == 3
    for name in ("migrate", "ingest", "worker", "operator"):
        url = services()[name]["environment"]["DATABASE_URL"]
        assert url.endswith("@db1,db2,db3/surelane?target_session_attrs=read-write"), name
        assert services()[name]["environment"]["PGPASSWORD"]


def test_its_containers_are_published_nowhere() -> None:
    for name in (*SERVERS, "etcd"):
        service = services()[name]
        assert service["image"] == f"surelane-ha:{version()}"
        assert "ports" not in service
        assert set(service["networks"]) == {"consensus"} | ({"database"} if name in SERVERS else set())


def test_no_service_of_ours_steers_the_servers() -> None:
    """Who may change Patroni's settings may set any parameter of the server. etcd asks for no password."""
    read = config(PRODUCTION, "compose/ha.yaml", env=SECRETS)
    assert read["networks"]["consensus"]["internal"] is True
    assert {name for name, each in services().items() if "consensus" in (each.get("networks") or {})} == {
        *SERVERS,
        "etcd",
    }
    assert PATRONI["restapi"]["authentication"] == {"username": "patroni"}
    for name in SERVERS:
        assert services()[name]["environment"]["PATRONI_RESTAPI_PASSWORD"] == SECRETS["POSTGRES_PASSWORD"]
    for name in ("migrate", "ingest", "worker", "operator"):
        assert SECRETS["POSTGRES_PASSWORD"] not in services()[name]["environment"].values()


def test_no_acknowledged_event_is_lost_none_is_logged_and_bounds_are_ones_that_patroni_takes() -> None:
    dcs = PATRONI["bootstrap"]["dcs"]
    assert dcs["synchronous_mode"] is True
    given = {name: str(value) for name, value in dcs["postgresql"]["parameters"].items()}
    logged = {name: value for name, value in given.items() if name.startswith("log_")}
    assert logged == database_settings("log_")
    assert dcs["ttl"] >= 20
    assert dcs["loop_wait"] + 2 * dcs["retry_timeout"] <= dcs["ttl"]
    assert SPEC["instances"] >= 3
    assert SPEC["postgresql"]["synchronous"] == {"method": "any", "number": 1, "dataDurability": "required"}
    assert SPEC["postgresql"]["parameters"] == database_settings("log_")


CLUSTER: dict[str, Any] = yaml.safe_load((ROOT / "examples/cloudnativepg/cluster.yaml").read_text())
SCHEMA = yaml.safe_load((ROOT / "tests/deploy/cloudnativepg.schema.yaml").read_text())
ACCOUNTS = (ROOT / "k8s/components/timescaledb/accounts.sql").read_text()
SPEC = CLUSTER["spec"]


def test_the_cluster_of_cloudnativepg_is_valid_and_its_accounts_are_those_of_every_other_database() -> None:
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
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(CLUSTER, SCHEMA)

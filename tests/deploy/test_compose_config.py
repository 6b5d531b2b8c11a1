"""Compose reads from our files the production shape alone, and the demonstration."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from surelane_encryption.keys import Keyring
from surelane_service.common.durations import parse_duration
from surelane_service.service_settings import (
    DEMO_CLIENT_ID,
    DEMO_CLIENT_SECRET,
    DEMO_SIGNING_SECRET,
    SLACK_API_URL,
)
from tests.deploy.commands import ROOT, run, version
from tests.deploy.compose import PRODUCTION, SECRETS, addresses, config
from tests.deploy.settings import READ, SECRET, is_read

IMAGES = {"ingest": "ingest", "worker": "worker", "migrate": "migrations", "operator": "operator"}
LONG_RUNNING = ("db", "ingest", "worker", "operator", "simulator")


@cache
def production() -> dict[str, Any]:
    services: dict[str, Any] = config(PRODUCTION, env=SECRETS)["services"]
    return services


@cache
def demonstration() -> dict[str, Any]:
    services: dict[str, Any] = config()["services"]
    return services


def test_production_is_what_it_needs_and_each_starts_when_that_is_there() -> None:
    assert set(production()) == {"settings", "db", "migrate", "ingest", "worker", "operator"}
    assert set(demonstration()) == {*production(), "simulator"}
    needs = {
        name: {needed: how["condition"] for needed, how in service.get("depends_on", {}).items()}
        for name, service in production().items()
    }
    completed = "service_completed_successfully"
    assert needs == {
        "settings": {},
        "db": {"settings": completed},
        "migrate": {"db": "service_healthy"},
        "ingest": {"migrate": completed},
        "worker": {"migrate": completed},
        "operator": {"migrate": completed},
    }


ADDRESSES = addresses("p", "db.example.com")


def test_an_external_database_takes_the_place_of_ours() -> None:
    slack = {name: value for name, value in SECRETS.items() if name.startswith("SLACK_")}
    read = config(PRODUCTION, "compose.external.yaml", env={**slack, **ADDRESSES})
    services = read["services"]
    assert set(services) == set(production()) - {"db"}
    assert {secret["source"] for secret in services["settings"]["secrets"]} == {"SLACK_BOT_TOKEN", *ADDRESSES}
    for name, needed in zip(IMAGES, ("INGEST", "WORKER", "OWNER", "OPERATOR"), strict=True):
        environment = services[name]["environment"]
        assert environment["DATABASE_URL"] == ADDRESSES[f"SURELANE_{needed}_DATABASE_URL"]
        assert "PGPASSWORD" not in environment
        assert "default" in services[name]["networks"], "the network from which the database is reached"
    assert set(services["migrate"]["depends_on"]) == {"settings"}


def test_secrets_may_be_files_of_which_no_value_stands_in_the_environment() -> None:
    files = (PRODUCTION, "compose.external.yaml", "examples/compose/secrets.yaml")
    read = config(*files, env={"SURELANE_SECRETS": "/s"})
    for name, image in IMAGES.items():
        service = read["services"][name]
        given = {each["source"] for each in service["secrets"]}
        named = {key: value for key, value in service["environment"].items() if key.endswith("_FILE")}
        assert {Path(path).name for path in named.values()} == given <= set(read["secrets"])
        assert {key.removesuffix("_FILE") for key in named} <= SECRET[image]
        assert not any(service["environment"].get(key) for key in SECRET[image]), "an empty one is unset"
    assert all(secret["file"].startswith("/s/") for secret in read["secrets"].values())
    assert read["services"]["operator"]["scale"] == 1


def test_a_router_finds_the_ingest_of_each_shard() -> None:
    env = {**SECRETS, "SHARD": "beta", "SHARD_NUMBER": "2"}
    shard = config(PRODUCTION, "extensions/shards/router/shard.yaml", env=env)
    assert shard["services"]["ingest"]["networks"]["shards"]["aliases"] == ["beta-ingest"]
    assert {"database", "default"} < set(shard["services"]["ingest"]["networks"])
    assert shard["services"]["db"]["networks"]["databases"]["aliases"] == ["beta-db"]
    router = config("extensions/shards/router/compose.yaml")
    assert list(router["services"]["router"]["networks"]) == ["shards"]
    assert "beta-ingest:8080" in (ROOT / "extensions/shards/router/shards.conf").read_text()


def test_no_service_of_a_shard_finds_another_shards_by_a_name_that_both_have() -> None:
    """In a network of several projects, the name of a service means one of each."""
    read = config(
        PRODUCTION, "extensions/shards/router/shard.yaml", env={**SECRETS, "SHARD": "a", "SHARD_NUMBER": "1"}
    )
    for shared in (name for name, network in read["networks"].items() if network.get("external")):
        there = {
            name: service
            for name, service in read["services"].items()
            if shared in service.get("networks", ())
        }
        for name, service in there.items():
            asked = re.findall(r"[a-z-]+", json.dumps([service.get("environment"), service.get("command")]))
            assert not there.keys() & set(asked) - {name}, f"{name} asks for a name in the network {shared}"


@pytest.mark.parametrize("name", ["db", "migrate", "ingest", "worker", "operator", "simulator"])
def test_containers_are_restarted_and_their_logs_bounded(name: str) -> None:
    service = demonstration()[name]
    assert service["logging"]["options"] == {"max-file": "3", "max-size": "10m"}
    assert service["restart"] == ("no" if name == "migrate" else "unless-stopped")


def test_ports_are_published_on_this_machine_only_no_private_one_but_the_operators_and_they_move() -> None:
    ports = [(name, port) for name, service in demonstration().items() for port in service.get("ports", [])]
    assert {port["host_ip"] for _, port in ports} == {"127.0.0.1"}
    published = [("ingest", 8080), ("operator", 8081), ("simulator", 8090)]
    assert sorted((name, port["target"]) for name, port in ports) == published
    moved = config(env={"SURELANE_PORT": "9001", "SURELANE_SIMULATOR_PORT": "9002"})["services"]
    assert [moved[name]["ports"][0]["published"] for name in ("ingest", "simulator")] == ["9001", "9002"]
    read = config(PRODUCTION, env=SECRETS)
    assert read["networks"]["database"]["internal"] is True
    assert set(read["services"]["db"]["networks"]) == {"database"}


def test_the_operators_api_runs_where_its_token_is_set() -> None:
    assert production()["operator"]["scale"] == 0
    with_token = config(PRODUCTION, env={**SECRETS, "SURELANE_API_TOKEN": "a-token"})["services"]["operator"]
    assert with_token["scale"] == 1
    assert with_token["environment"]["SURELANE_API_TOKEN"] == "a-token"
    assert "SURELANE_API_TOKEN" not in production()["ingest"]["environment"]


def test_readiness_is_what_health_means_and_services_are_given_longer_than_they_drain() -> None:
    for name in ("ingest", "worker", "operator"):
        assert "/readyz" in production()[name]["healthcheck"]["test"][-1]
    for name in LONG_RUNNING:
        assert demonstration()[name]["healthcheck"], name
    for name in ("ingest", "worker"):
        assert parse_duration(production()[name]["stop_grace_period"]) > parse_duration("30s")


def test_images_are_of_this_version_and_can_come_from_a_registry() -> None:
    elsewhere = config(env={"SURELANE_REGISTRY": "registry.example.com/team/"})["services"]
    for service, image in {**IMAGES, "simulator": "simulator"}.items():
        assert demonstration()[service]["image"] == f"surelane-{image}:{version()}"
        assert demonstration()[service]["build"]["args"] == {"VERSION": version()}
        assert elsewhere[service]["image"] == f"registry.example.com/team/surelane-{image}:{version()}"


def test_every_variable_is_read_by_the_code_and_every_setting_can_be_set() -> None:
    for services in (production(), demonstration()):
        for service, image in IMAGES.items():
            assert services[service]["environment"]
            for variable in services[service]["environment"]:
                assert is_read(image, variable), f"{image} does not read {variable}"
    # Except addresses, ports and names, which differ per container.
    fixed = {
        f"SURELANE_{name}"
        for name in ("HOST", "PORT", "PRIVATE_HOST", "PRIVATE_PORT", "WORKER_NAME", "OPERATOR_DATABASE_URL")
    }
    named = "\n".join(file.read_text() for file in (ROOT / "compose").glob("*.*"))
    for image, variables in READ.items():
        assert variables
        passed = {variable for variable in variables if re.search(rf"^{variable}\b", named, re.MULTILINE)}
        given = set(production()["migrate" if image == "migrations" else image]["environment"])
        assert variables - passed - given <= fixed, image


def test_settings_are_passed_on_as_given_and_one_that_is_not_leaves_the_images_own_alone() -> None:
    given = {"SURELANE_CONCURRENCY": "7", "OTEL_BSP_MAX_QUEUE_SIZE": "9"}
    services = config(PRODUCTION, env={**SECRETS, **given})["services"]
    assert given.items() <= services["worker"]["environment"].items()
    assert services["ingest"]["environment"]["OTEL_BSP_MAX_QUEUE_SIZE"] == "9"
    # Compose removes a variable without a value from the image's ENV. An empty value hides it.
    for services in (production(), demonstration()):
        for name in ("migrate", "ingest", "worker", "operator"):
            given = services[name]["environment"]
            blank = {variable for variable, value in given.items() if value in (None, "")}
            may = {"SURELANE_API_TOKEN", "SLACK_APP_TOKEN"}
            may |= {"SLACK_CLIENT_ID", "SLACK_CLIENT_SECRET"} if services is demonstration() else set()
            assert blank <= may, (name, blank)
            assert not services[name]["environment"].keys() & {"SURELANE_HANDLERS", "OTEL_TRACES_SAMPLER"}


def test_the_demonstration_speaks_to_its_simulator_with_public_secrets_and_hands_it_no_real_ones() -> None:
    for name in ("ingest", "worker"):
        assert demonstration()[name]["environment"]["SLACK_API_URL"] == "http://simulator:8090/api/"
        assert production()[name]["environment"].get("SLACK_API_URL", SLACK_API_URL) in (None, SLACK_API_URL)
    ingest, simulator = (demonstration()[name]["environment"] for name in ("ingest", "simulator"))
    assert ingest["SLACK_SIGNING_SECRET"] == simulator["SLACK_SIGNING_SECRET"] == DEMO_SIGNING_SECRET
    slacks = (f"SLACK_{name}" for name in ("APP_TOKEN", "SIGNING_SECRET", "BOT_TOKEN"))
    real = {name: f"real-{name}" for name in (*slacks, "SURELANE_DISPATCH_SECRETS")}
    given = config(env=real)["services"]["simulator"]["environment"]
    assert not set(real.values()) & set(given.values())


def test_with_a_client_id_the_demonstration_installs_its_own_app() -> None:
    given = {"SLACK_CLIENT_ID": "7.7", "SLACK_CLIENT_SECRET": "real", "SURELANE_PORT": "9001"}
    services = config(env={**given, "SURELANE_SIMULATOR_PORT": "9002"})["services"]
    ingest, worker, simulator = (services[name]["environment"] for name in ("ingest", "worker", "simulator"))
    assert {each["SLACK_CLIENT_ID"] for each in (ingest, worker, simulator)} == {DEMO_CLIENT_ID}
    for each in (ingest, worker):
        assert each["SLACK_CLIENT_SECRET"] == DEMO_CLIENT_SECRET
        assert Keyring.read(each["SURELANE_ENCRYPTION_KEYS"])
    assert ingest["SLACK_AUTHORIZE_URL"] == "http://127.0.0.1:9002/oauth/v2/authorize"
    assert simulator["SURELANE_SIMULATOR_INGEST_URL"] == "http://127.0.0.1:9001"
    assert not demonstration()["simulator"]["environment"]["SLACK_CLIENT_ID"]


def test_the_demonstration_s_worker_runs_its_handlers_unless_the_image_names_others() -> None:
    worker = demonstration()["worker"]
    (mounted,) = worker["volumes"]
    assert (ROOT / mounted["source"]).samefile(ROOT / "dev/src/surelane_dev/demonstration.py")
    shown = worker["entrypoint"][2].replace("$$", "$").replace("python -m surelane_worker", "env")
    for own, expected in (({}, "demonstration:handlers"), ({"SURELANE_HANDLERS": "bot:app"}, "bot:app")):
        assert f"SURELANE_HANDLERS={expected}" in run("sh", "-c", shown, env=own).stdout.splitlines()


def test_every_secret_is_demanded_and_no_service_gets_anothers() -> None:
    demanded = {secret["source"] for secret in production()["settings"]["secrets"]}
    assert demanded == set(SECRETS) - {"SLACK_SIGNING_SECRET"}, "SLACK_APP_TOKEN is enough"
    for name in ("ingest", "worker", "operator", "migrate"):
        given = production()[name]["environment"].values()
        assert len([value for value in given if value in SECRETS.values()]) <= 2, name
    for name in ("ingest", "operator"):
        assert SECRETS["SLACK_BOT_TOKEN"] not in production()[name]["environment"].values()


def test_every_variable_is_explained() -> None:
    """The page has Compose's variables and all variables that the files in ``compose/`` pass on."""
    used = set()
    for file in (*ROOT.glob("compose*.yaml"), *(ROOT / "compose").glob("*.*")):
        used |= set(re.findall(r"\$\{([A-Z_]+)", file.read_text()))
        used |= set(re.findall(r"^([A-Z_]+)\b", file.read_text(), re.MULTILINE))
    assert not re.findall(r"^ +[A-Z_]+:$", (ROOT / "compose.yaml").read_text(), re.MULTILINE)
    explained = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert used <= explained, sorted(used - explained)
    assert explained - used == {"COMPOSE_FILE"}

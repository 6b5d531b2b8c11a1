"""Alert rules, dashboard and collector are valid and use existing metrics; the runbook has each alert."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from surelane_service.common.schema import RECORD
from tests.deploy.commands import ROOT, run
from tests.deploy.compose import config
from tests.deploy.manifests import OBSERVED, named, rendered, workloads
from tests.deploy.manifests import labels as labels_of
from tests.deploy.monitoring import (
    ALERTS,
    DASHBOARD,
    OBSERVABILITY,
    RUNBOOK,
    alerts,
    dashboard_queries,
    documented,
    queries,
)
from tests.needs import program

WORDS = {
    *("abs", "absent", "and", "by", "count", "deriv", "histogram_quantile", "increase", "max", "min"),
    *("offset", "on", "or", "rate", "sum", "time", "unless", "vector"),
}
"""The functions of PromQL that are used."""
GRID = 24
"""The number of columns of a Grafana dashboard."""
BY_TARGET = {"instance", "job"}
NAME = "app.kubernetes.io/name"
PUBLISHED = {"grafana": 3000, "jaeger": 16686, "prometheus": 9090}


def test_rules_scraping_and_queries_are_valid_and_alerts_fire_when_they_should(tmp_path: Path) -> None:
    run(program("promtool"), "check", "config", ALERTS.with_name("prometheus.yaml"))
    cases = ROOT / "tests/deploy/alerts.yaml"
    run(program("promtool"), "test", "rules", cases)
    names = " ".join(case["name"] for case in yaml.safe_load(cases.read_text())["tests"])
    assert {alert["alert"] for alert in alerts()} <= set(re.findall(r"\w+", names))
    rules = [{"record": f"query{number}", "expr": query} for number, query in enumerate(dashboard_queries())]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run(program("promtool"), "check", "rules", file)


def test_the_dashboard_asks_the_datasources_that_are_provided_and_no_panel_lies_on_another() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    provided = yaml.safe_load((OBSERVABILITY / "grafana/datasources.yaml").read_text())["datasources"]
    asked = [*dashboard["panels"], *dashboard["templating"]["list"]]
    assert {panel["datasource"]["uid"] for panel in asked} <= {source["uid"] for source in provided}
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    taken = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < GRID
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)


@pytest.mark.parametrize("query", list(queries()))
def test_every_metric_and_label_is_exported(query: str) -> None:
    series = documented()
    for name, labels in re.findall(r"(\w+)\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+) *[=!]", re.sub(r'"[^"]*"', "", labels))) <= series[name] | BY_TARGET
    known = WORDS | BY_TARGET | set(series) | {label for labels in series.values() for label in labels}
    words = re.sub(r'"[^"]*"|\[[^]]*\]|\b\d[\w.]*', "", query)
    assert {word for word in re.findall(r"\w+", words) if word not in known} == set(), "nothing exports them"


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_every_alert_says_how_bad_it_is_and_where_its_answer_stands(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert alert["annotations"]["summary"].endswith((".", "}}."))
    assert alert["annotations"]["runbook"] == f"docs/runbook.md#{alert['alert'].lower()}"
    assert f"\n### {alert['alert']}\n" in RUNBOOK.read_text()


def test_the_runbook_answers_no_alert_that_is_gone_and_what_it_names_exists() -> None:
    answered = re.findall(r"^### (Surelane\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert answered == [alert["alert"] for alert in alerts()]
    text, schema = RUNBOOK.read_text(), RECORD.read_text()
    names = set(re.findall(r"\bagent\.([a-z_]+)", text))
    assert names
    for name in names:
        assert re.search(rf"^(function|table|view) {name}\b", schema, re.MULTILINE), f"agent.{name}"
    there = {(manifest["kind"].lower(), manifest["metadata"]["name"]) for manifest in rendered(OBSERVED)}
    called = set(re.findall(r"\b(deployment|job)/([\w.-]+\w)", text))
    assert called
    assert called <= there


def observed() -> dict[str, Any]:
    services: dict[str, Any] = config(env={"COMPOSE_PROFILES": "observability"})["services"]
    return services


@pytest.mark.parametrize("name", ["collector", *PUBLISHED])
def test_compose_runs_it_and_reads_the_files_that_kubernetes_does(name: str) -> None:
    service = observed()[name]
    assert name not in config()["services"], "only with the profile"
    assert service["user"].partition(":")[0] not in {"", "0"}
    for port in service.get("ports", []):
        assert (port["host_ip"], port["target"]) == ("127.0.0.1", PUBLISHED[name])
    mounted = [Path(volume["source"]) for volume in service["volumes"] if volume["type"] == "bind"]
    assert mounted
    assert all(file.exists() and file.is_relative_to(OBSERVABILITY) for file in mounted)


def test_services_export_to_the_collector_only_while_there_is_one() -> None:
    for name in ("ingest", "worker", "operator"):
        with_profile, without = observed()[name]["environment"], config()["services"][name]["environment"]
        assert with_profile["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
        assert with_profile["OTEL_METRICS_EXPORTER"] == "none", "Prometheus scrapes them"
        assert "OTEL_EXPORTER_OTLP_ENDPOINT" not in without
        assert "OTEL_METRICS_EXPORTER" not in without
    elsewhere = {"COMPOSE_PROFILES": "observability", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://mine:4318"}
    moved = config(env=elsewhere)["services"]["worker"]["environment"]
    assert moved["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://mine:4318"
    data = next(
        manifest["data"]
        for manifest in rendered(OBSERVED)
        if manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"].startswith("surelane-")
    )
    assert data["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"


@pytest.mark.parametrize("name", ["collector", "jaeger"])
def test_pipelines_are_made_of_components_that_are_defined(name: str) -> None:
    read = yaml.safe_load((OBSERVABILITY / f"{name}.yaml").read_text())
    assert set(read["service"]["extensions"]) == set(read["extensions"])
    pipelines = read["service"]["pipelines"].values()
    for part in ("receivers", "processors", "exporters"):
        assert {component for pipeline in pipelines for component in pipeline[part]} == set(read[part])


def test_every_program_that_shows_metrics_is_scraped_and_what_scrapes_or_exports_may() -> None:
    manifests = rendered(OBSERVED)
    shown = {
        labels_of(workload)[NAME]
        for workload in workloads(manifests)
        if workload["spec"]["template"]["metadata"].get("annotations", {}).get("prometheus.io/scrape")
        == "true"
    }
    jobs = yaml.safe_load(ALERTS.with_name("prometheus.yaml").read_text())["scrape_configs"]
    names = [name for job in jobs for config in job["dns_sd_configs"] for name in config["names"]]
    services = [named(manifests, "Service", name)["spec"]["selector"][NAME] for name in names]
    assert services == [job["job_name"] for job in jobs] == sorted(shown)
    (egress,) = named(manifests, "NetworkPolicy", "prometheus")["spec"]["egress"]
    (reached,) = egress["to"][0]["podSelector"]["matchExpressions"]
    assert (reached["key"], set(reached["values"])) == (NAME, shown)
    policy = named(manifests, "NetworkPolicy", "allow-observability")["spec"]
    ours = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}
    assert ours in policy["ingress"][0]["from"]
    assert policy["ingress"][0]["ports"] == [{"protocol": "TCP", "port": "private"}]
    collector = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "collector"}}}
    assert collector in policy["egress"][0]["to"]
    assert {"protocol": "TCP", "port": 4318} in policy["egress"][0]["ports"]

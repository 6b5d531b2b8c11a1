"""Read the alert rules, the dashboard, the documented metrics and the runbook."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests import metrics
from tests.deploy.commands import ROOT
from tests.metrics import documented_labels

OBSERVABILITY = ROOT / "observability"
ALERTS = OBSERVABILITY / "prometheus/alerts.yaml"
DASHBOARD = OBSERVABILITY / "grafana/surelane.json"
RUNBOOK = ROOT / "docs/runbook.md"

_SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}
_ALERT = {"alertname", "alertstate", "severity"}
_BY_PROMETHEUS = {"up": set(), "ALERTS": _ALERT, "process_resident_memory_bytes": set()}


def alerts() -> list[dict[str, Any]]:
    """Return the alert rules."""
    read = yaml.safe_load(ALERTS.read_text())
    return [rule for group in read["groups"] for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    """Return the dashboard's queries, with Grafana's variables filled in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = (target["expr"] for panel in panels for target in panel["targets"])
    return [query.replace("$kind", ".*").replace("$__rate_interval", "1m") for query in queries]


def queries() -> Iterator[str]:
    """Return every PromQL expression of rules and dashboard."""
    yield from (alert["expr"] for alert in alerts())
    yield from dashboard_queries()


def documented() -> dict[str, set[str]]:
    """Return the labels of each documented series, and of Prometheus' own."""
    found: dict[str, set[str]] = {name: set(labels) for name, labels in _BY_PROMETHEUS.items()}
    labels = documented_labels()
    for name, kind in metrics.documented().items():
        for suffix in _SUFFIXES.get(kind, ("",)):
            found[name + suffix] = labels[name] | ({"le"} if suffix == "_bucket" else set())
    return found

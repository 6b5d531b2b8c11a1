"""Read the documented metrics, and those that a service shows."""

import re
from collections.abc import Mapping
from pathlib import Path

import aiohttp
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parent.parent / "docs/metrics.md"
OURS = ("surelane_", "messaging_")


def documented(*sections: str) -> dict[str, str]:
    """Return the types of the documented metrics by name, of some sections of the page or all."""
    found: dict[str, str] = {}
    for part in PAGE.read_text().split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        if not sections or title in sections:
            found.update(re.findall(r"^\| `(\w+)` \| (\w+)", body, re.MULTILINE))
    return found


def documented_labels() -> dict[str, set[str]]:
    """Return the documented labels of each metric that has any."""
    rows = re.findall(r"^\| `(\w+)` \|[^|\n]*\|([^|\n]*)\|", PAGE.read_text(), re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", labels))) for name, labels in rows}


def labels(family: Metric) -> set[str]:
    """Return the labels of a metric's series, without those that all of our series may have."""
    found = {label for sample in family.samples for label in sample.labels}
    return found - {"le", "messaging_system", "messaging_operation_name", "messaging_operation_type"}


async def exported(private_url: str) -> dict[str, Metric]:
    """Return a service's metrics by name; counters have the suffix ``_total``."""
    async with aiohttp.ClientSession() as session, session.get(f"{private_url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
        return {family.name + ("_total" if family.type == "counter" else ""): family for family in families}


def ours(families: Mapping[str, Metric]) -> dict[str, str]:
    """Return the types of the shown metrics by name, without those of the runtime."""
    return {name: family.type for name, family in families.items() if name.startswith(OURS)}


def value(families: Mapping[str, Metric], name: str, **labels: str) -> float | None:
    """Return the value of one series; ``None`` if there is none."""
    found = [
        sample.value
        for sample in families[name].samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) <= 1, f"{name} has {len(found)} series with {labels}"
    return found[0] if found else None

"""The names of settings, services and workloads that blocks may use."""

import re
from functools import cache
from itertools import chain

import yaml
from pydantic.fields import FieldInfo

import surelane_dev.dev_settings
import surelane_dev.simulator.simulator_settings
from tests.deploy.settings import MODULES, fields_of
from tests.docs.blocks import ROOT

ALL = (
    *chain.from_iterable(MODULES.values()),
    surelane_dev.dev_settings,
    surelane_dev.simulator.simulator_settings,
)


EXAMPLES = [*ROOT.glob("examples/*/*.yaml"), *ROOT.glob("extensions/*/*/*.yaml")]
"""The Compose files and manifests of the examples."""


@cache
def settings() -> dict[str, FieldInfo]:
    """Return the settings of our programs by variable."""
    return {str(field.validation_alias): field for module in ALL for field in fields_of(module)}


@cache
def variables() -> set[str]:
    """Return the environment variables that our programs, Compose and the tests read."""
    named = (ROOT / ".env.example", ROOT / "compose.yaml", *EXAMPLES)
    compose = "\n".join(file.read_text() for file in named)
    more = {"SURELANE_RECORD", "SURELANE_TRACE_URL", "SURELANE_VERSION", "COMPOSE_FILE"}
    return {*settings(), *more, *re.findall(r"\b[A-Z][A-Z_]+[A-Z]\b", compose)}


@cache
def services() -> set[str]:
    """Return the services of Compose."""
    files = [*ROOT.glob("compose*.yaml"), *ROOT.glob("compose/*.yaml"), *EXAMPLES]
    found = [yaml.safe_load(re.sub(r"!\w+", "", file.read_text())) for file in files]
    return {name for each in found if isinstance(each, dict) for name in each.get("services") or ()}


@cache
def workloads() -> set[str]:
    """Return the names of what the manifests create."""
    texts = [file.read_text() for file in (ROOT / "k8s").rglob("*.yaml")]
    return {name for text in texts for name in re.findall(r"^  name: ([\w.-]+)$", text, re.MULTILINE)}

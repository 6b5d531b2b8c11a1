"""The page of settings has each setting of the services, with its default."""

import re
from typing import Any

import pytest

from surelane_agents import AgentSettings
from surelane_bolt import BoltSettings
from surelane_ingest.ingest_settings import IngestSettings
from surelane_operator.console.access.access_settings import AccessSettings
from surelane_service.service_settings import load_settings, secrets_of, variables_of
from surelane_worker.worker_settings import WorkerSettings
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs/settings.md").read_text()
ROW = re.compile(r"^\| (`[A-Z_`, ]+`) \| ([^|]+) \|", re.MULTILINE)
SOMEWHERE = {
    *("SURELANE_MODEL_INSTRUCTIONS", "SURELANE_WORKER_NAME", "SURELANE_HANDLERS", "SURELANE_CONSOLE_KEY"),
    *("SURELANE_MESSAGE_URL", "SLACK_SCOPES", "SLACK_AUTHORIZE_URL", "SLACK_REDIRECT_URI"),
}
"""Settings whose default the page describes in words."""
ALSO = {"SURELANE_OPERATOR_DATABASE_URL": "DATABASE_URL"}
"""Settings in whose place another one is taken."""
NEEDED = {"DATABASE_URL": "postgresql://", "SLACK_SIGNING_SECRET": "secret"}


def rows(*sections: str) -> dict[str, str]:
    """Return the documented defaults by variable."""
    found: dict[str, str] = {}
    for part in PAGE.split("\n## ")[1:]:
        if part.partition("\n")[0] in sections:
            for names, defaults in ROW.findall(part):
                each = [default.strip() for default in defaults.split(", ")]
                variables = re.findall(r"[A-Z_]+", names)
                spread = each if len(each) == len(variables) else [defaults.strip()] * len(variables)
                found |= dict(zip(variables, spread, strict=True))
    return found


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ("Ingest", IngestSettings),
        ("Worker", WorkerSettings),
        ("Operator", AccessSettings),
        ("Agents", AgentSettings),
        ("Bolt apps", BoltSettings),
    ],
)
def test_page_has_each_setting_with_its_default(section: str, settings: Any) -> None:
    documented = rows("All services", "Ingest and the worker", section)
    fields = {each: name for name, field in settings.model_fields.items() for each in variables_of(field)}
    assert fields.keys() <= documented.keys(), fields.keys() - documented.keys()
    assert rows(section).keys() <= fields.keys(), "a setting that is not there any longer"
    assert fields
    usual = load_settings(settings, **NEEDED)
    for variable, name in fields.items():
        said = documented[variable].strip("`")
        value = getattr(usual, name)
        if variable in ALSO:
            assert said == ALSO[variable], variable
        elif settings.model_fields[name].is_required():
            assert said == "required", variable
        elif variable in NEEDED:  # given here, because one of two ways to Slack must be
            assert said == "none", variable
        elif not value and variable not in SOMEWHERE:
            assert said in {"none", "unknown", "off", "DATABASE_URL", "SURELANE_HOST"}, variable
        elif variable not in SOMEWHERE:
            # As the environment would give it.
            assert getattr(load_settings(settings, **{**NEEDED, variable: said}), name) == value, variable


def test_page_names_each_secret_that_may_be_a_file() -> None:
    (said,) = re.findall(r"These may be files: (.*?)\. Variables", PAGE, re.DOTALL)
    kinds = (IngestSettings, WorkerSettings, AccessSettings, AgentSettings)
    assert set(re.findall("`(.*?)`", said)) == {
        "PGPASSWORD",
        *(name for kind in kinds for name in secrets_of(kind)),
    }

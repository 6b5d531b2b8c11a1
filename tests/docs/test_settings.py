"""The page of settings has each setting of ingest and the worker, with its default."""

import re
from typing import Any

import pytest

from surelane_ingest.settings import IngestSettings
from surelane_service.settings import load_settings
from surelane_worker.settings import WorkerSettings
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs/settings.md").read_text()
ROW = re.compile(r"^\| (`[A-Z_`, ]+`) \| ([^|]+) \|", re.MULTILINE)
SOMEWHERE = {
    "SURELANE_MODEL_INSTRUCTIONS",
    "SURELANE_WORKER_NAME",
    "SURELANE_HANDLERS",
    "SURELANE_CONSOLE_KEY",
    "SURELANE_MESSAGE_URL",
    "SLACK_SCOPES",
    "SLACK_AUTHORIZE_URL",
    "SLACK_REDIRECT_URI",
}
"""Settings whose default the page describes in words."""
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


@pytest.mark.parametrize(("section", "settings"), [("Ingest", IngestSettings), ("Worker", WorkerSettings)])
def test_page_has_each_setting_with_its_default(section: str, settings: Any) -> None:
    documented = rows("All services", "Ingest and the worker", section)
    fields = {str(field.validation_alias): name for name, field in settings.model_fields.items()}
    assert fields.keys() <= documented.keys(), fields.keys() - documented.keys()
    assert rows(section).keys() <= fields.keys(), "a setting that is not there any longer"
    usual = load_settings(settings, **NEEDED)
    for variable, name in fields.items():
        said = documented[variable].strip("`")
        value = getattr(usual, name)
        if settings.model_fields[name].is_required():
            assert said == "required", variable
        elif variable in NEEDED:  # given here, because one of two ways to Slack must be
            assert said == "none", variable
        elif not value and variable not in SOMEWHERE:
            assert said in {"none", "unknown", "off", "DATABASE_URL", "SURELANE_HOST"}, variable
        elif variable not in SOMEWHERE:
            # As the environment would give it.
            assert getattr(load_settings(settings, **{**NEEDED, variable: said}), name) == value, variable

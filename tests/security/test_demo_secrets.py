"""The public demo secrets are refused with Slack's own Web API, in any spelling of its URL."""

from typing import Any

import pytest

from surelane.errors import SettingsError
from surelane_ingest.ingest_settings import IngestSettings
from surelane_operator.console.access.access_settings import AccessSettings
from surelane_service.service_settings import (
    DEMO_API_TOKEN,
    DEMO_BOT_TOKEN,
    DEMO_SIGNING_SECRET,
    load_settings,
)
from surelane_worker.worker_settings import WorkerSettings

SLACK = [
    *("https://slack.com/api/", "https://SLACK.com/api/", "https://slack.com//api/", "https://slack.com/api"),
    *(
        "https://slack.com:443/api/",
        "http://slack.com/api/",
        "HTTPS://slack.com./api/",
        "https://u@slack.com/",
    ),
    *(
        "https://slack-gov.com/api/",
        "https://api.slack.com/",
        "https://slack\uff0ecom/",
        " https://slack.com/",
    ),
]
OTHERS = [
    *("http://127.0.0.1:8090/api/", "http://simulator:8090/api/", "https://slack.com.example/api/"),
    *("https://notslack.com/api/", "http://[::1]:8090/api/", "https://example.com/https://slack.com/api/"),
]
NEITHER = [
    *("slack.com/api/", "ftp://slack.com/", "https:///api/"),
    *("https://slack%2ecom/api/", "https://sl ack.com/"),
]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u@/d?host=/s")
    monkeypatch.setenv("SLACK_SIGNING_SECRET", "0123456789abcdef")
    for name in ("SLACK_BOT_TOKEN", "SURELANE_API_TOKEN", "SLACK_API_URL"):
        monkeypatch.delenv(name, raising=False)


DEMO = [
    (IngestSettings, "SLACK_SIGNING_SECRET", DEMO_SIGNING_SECRET),
    (IngestSettings, "SLACK_SIGNING_SECRET", f"new, {DEMO_SIGNING_SECRET} "),
    (AccessSettings, "SURELANE_API_TOKEN", DEMO_API_TOKEN),
    (WorkerSettings, "SLACK_BOT_TOKEN", DEMO_BOT_TOKEN),
]


@pytest.mark.parametrize(("kind", "name", "secret"), DEMO)
def test_no_demo_secret_is_taken_with_slack_itself(kind: Any, name: str, secret: str) -> None:
    for url in SLACK:
        with pytest.raises(SettingsError, match=f"{name} is a public demo secret"):
            load_settings(kind, SLACK_API_URL=url, **{name: secret})
    for url in OTHERS:
        load_settings(kind, SLACK_API_URL=url, **{name: secret})


@pytest.mark.parametrize("url", NEITHER)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="SLACK_API_URL is not"):
        load_settings(WorkerSettings, SLACK_API_URL=url)

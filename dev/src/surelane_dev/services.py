"""Define the services of `surelane dev`: their environments and their addresses."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from surelane.errors import SettingsError
from surelane_dev.accounts import OWNER, uri_of
from surelane_dev.data_directory import program
from surelane_dev.dev_settings import DevSettings
from surelane_dev.project import Project
from surelane_dev.simulator.simulator_settings import FAKE_MODEL, FAKE_MODEL_PATH
from surelane_dev.supervisor import Start
from surelane_operator.console.access.signing import sign_in_link
from surelane_service.manifest import MANIFEST
from surelane_service.service_settings import (
    DEMO_API_TOKEN,
    DEMO_BOT_TOKEN,
    DEMO_CLIENT_SECRET,
    DEMO_SIGNING_SECRET,
    is_slack,
)

DATABASE = "surelane"
DEMONSTRATION = "surelane_dev.demonstration:handlers"
DEMO_APP_TOKEN = "xapp-surelane-demo"  # noqa: S105 - public; Slack's own API knows no such token
SLACK_SECRETS = ("SLACK_APP_TOKEN", "SLACK_SIGNING_SECRET", "SLACK_BOT_TOKEN", "SLACK_CLIENT_SECRET")
SIMULATOR_READS = (
    *("SURELANE_SIMULATOR_", MANIFEST, "SURELANE_INGEST_URL", "SLACK_CLIENT_ID", "LOG_LEVEL"),
    *("PATH", "HOME", "TMPDIR", "LANG", "LC_", "TZ", "PYTHON", "VIRTUAL_ENV"),
)
"""Prefixes of the variables that the simulator gets. None of them is a secret."""
DATABASE_URLS = ("DATABASE_URL", "SURELANE_OPERATOR_DATABASE_URL")


@dataclass(frozen=True)
class Databases:
    """The URIs with which the programs connect."""

    owner: str
    ingest: str
    operator: str
    worker: str

    @classmethod
    def embedded(cls, superuser: str) -> "Databases":
        """Return a role per program, as in production."""
        roles = (OWNER, "surelane_ingest", "surelane_operator", "surelane_worker")
        return cls(*(uri_of(superuser, role=role, database=DATABASE) for role in roles))

    @classmethod
    def given(cls, uri: str) -> "Databases":
        """Return the same role for every program."""
        return cls(uri, uri, uri, uri)


def before(name: str) -> dict[str, str]:
    """Return the environment of a process that has only imported a service: the simulator's has no secret."""
    given = os.environ.items()
    return {key: value for key, value in given if name != "simulator" or key.startswith(SIMULATOR_READS)}


def services(
    settings: DevSettings, project: Project, ports: Mapping[str, int], databases: Databases
) -> dict[str, Start]:
    """Return how to start the simulator, ingest, the operator's service and a worker. Variables of the environment win.

    There are two exceptions. Without ``SLACK_API_URL`` the simulator stands in Slack's place, and the services get the
    demonstration's secrets instead of the real app's. And the databases are always these. The simulator never gets a
    secret.
    """
    at = settings.url
    simulator = f"{at}:{ports['simulator']}"
    given = {name: value for name, value in os.environ.items() if value and name not in DATABASE_URLS}
    stand_in: dict[str, str] = {}
    operators: dict[str, str] = {}
    if simulated():
        given = {name: value for name, value in given.items() if not _is_real(name, value)}
        limits = given.get("SURELANE_SIMULATOR_TIERS", "off")
        stand_in = {"SURELANE_SLACK_LIMITS": limits, "SLACK_BOT_TOKEN": DEMO_BOT_TOKEN}
        if settings.is_local:  # the token is public
            operators["SURELANE_API_TOKEN"] = DEMO_API_TOKEN
    if "SURELANE_API_TOKEN" in operators | given:
        operators |= {"SURELANE_CONSOLE_SIGN_IN": "token", "SURELANE_MCP": "change"}
    if simulated() or "SLACK_APP_TOKEN" not in given:
        stand_in["SLACK_SIGNING_SECRET"] = DEMO_SIGNING_SECRET
    shared = {
        "SLACK_API_URL": f"{simulator}/api/",
        **stand_in,
        "SURELANE_HOST": settings.host,
        "SURELANE_SIMULATOR_STATE": str(settings.data_dir.expanduser().resolve() / "simulator.json"),
        **project.settings,
        **given,
    }
    if "SLACK_CLIENT_SECRET" not in given:  # installs are off, and the simulator must know
        shared.pop("SLACK_CLIENT_ID", None)
    if shared.get("SURELANE_MODEL") == FAKE_MODEL:
        shared.setdefault("SURELANE_MODEL_URL", simulator + FAKE_MODEL_PATH)
    # If ingest takes the demo secret, it takes the simulator's events. The simulator then gets the database too, to
    # show the status of those events.
    posting = DEMO_SIGNING_SECRET in shared.get("SLACK_SIGNING_SECRET", "").split(",")
    database = {name: shared[name] for name in shared if name.startswith("PG")}
    database["SURELANE_OPERATOR_DATABASE_URL"] = databases.operator
    public = {name: value for name, value in shared.items() if name.startswith(SIMULATOR_READS)}
    page = f"{at}:{ports['operator']}"

    def one(of: str, port: str, environment: Mapping[str, str], **variables: str) -> Start:
        private = {"DATABASE_URL": getattr(databases, of), "SURELANE_PRIVATE_PORT": str(ports[port])}
        return Start({**environment, **private, **variables}, f"{at}:{ports[port]}/readyz")

    theirs = {"SURELANE_HANDLERS": DEMONSTRATION, "SURELANE_CONSOLE_URL": page, **shared}
    return {
        "simulator": Start(
            {
                "SURELANE_INGEST_URL": f"{at}:{ports['ingest']}",
                "SURELANE_SIMULATOR_URL": simulator,
                **public,
                "SURELANE_HOST": settings.host,
                "SURELANE_SIMULATOR_PORT": str(ports["simulator"]),
                "SURELANE_SIMULATOR_POSTING": "on" if posting else "off",
                **(database if posting else {}),
            },
            f"{simulator}/readyz",
        ),
        "ingest": one("ingest", "ingest_private", shared, SURELANE_PORT=str(ports["ingest"])),
        "operator": one("operator", "operator", {**operators, **shared}),
        "worker": one("worker", "worker_private", theirs),
    }


def _is_real(name: str, value: str | None) -> bool:
    """Return whether a variable is a secret of a real Slack app, and none of the simulator's public ones."""
    return name in SLACK_SECRETS and value not in (None, DEMO_CLIENT_SECRET, DEMO_APP_TOKEN)


def simulated() -> bool:
    """Return whether the simulator stands in Slack's place, because the environment names no other Slack."""
    return not os.environ.get("SLACK_API_URL")


def require_tokens() -> None:
    """Raise SettingsError where ``SLACK_API_URL`` names the real Slack, and the app's tokens are not set."""
    try:
        if simulated() or not is_slack(os.environ["SLACK_API_URL"]):
            return
    except ValueError as error:
        raise SettingsError(str(error)) from None
    ways = {
        "SLACK_APP_TOKEN (or SLACK_SIGNING_SECRET)": ("SLACK_APP_TOKEN", "SLACK_SIGNING_SECRET"),
        "SLACK_BOT_TOKEN": ("SLACK_BOT_TOKEN", "SLACK_CLIENT_SECRET"),
    }
    missing = [said for said, names in ways.items() if not any(os.environ.get(name) for name in names)]
    if missing:
        needs = f"the real Slack needs {' and '.join(missing)}"
        raise SettingsError(f"{needs}: set the app's own, or unset SLACK_API_URL for the simulator")


def set_aside() -> list[str]:
    """Return a message for each kind of variable that is not used."""
    real = [name for name in SLACK_SECRETS if _is_real(name, os.environ.get(name) or None)]
    of_slack = (
        "the simulator stands in Slack's place",
        "set SLACK_API_URL=https://slack.com/api/ for the real Slack",
    )
    given = [name for name in DATABASE_URLS if os.environ.get(name)]
    own = "it may be a deployment's", "SURELANE_DEV_DATABASE_URL names a database of yours to develop with"
    unused = ((real if simulated() else [], *of_slack), (given, *own))
    return [f"not used, because {why}: {', '.join(names)}; {how}" for names, why, how in unused if names]


def where_to_look(
    settings: DevSettings,
    project: Project,
    ports: Mapping[str, int],
    databases: Databases,
    missing: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the lines that greet a newcomer. The last ones say which services are ``missing``, and why."""
    at, token = settings.url, os.environ.get("SURELANE_API_TOKEN")
    client = "psql" if shutil.which("psql") else program("psql")
    yours = "yours, by SURELANE_DEV_DATABASE_URL"
    opened = yours if settings.database_url else f"{client} '{databases.owner}'"
    own = "those of the demonstration; write your own with: surelane new"
    public = simulated() and settings.is_local and not token
    page = f"{at}:{ports['operator']}"
    addresses = {"ingest": "ingest_private", "operator": "operator", "worker": "worker_private"}
    private = ", ".join(f"{name} {at}:{ports[port]}/" for name, port in addresses.items())
    secret = os.environ.get("SLACK_CLIENT_SECRET") or ""
    aside = simulated() and _is_real("SLACK_CLIENT_SECRET", secret)
    lines = {"talk to the bot": f"{at}:{ports['simulator']}/"}
    if os.environ.get("SLACK_CLIENT_ID") and secret and not aside:
        lines["install the app"] = f"{at}:{ports['ingest']}/slack/install"
    lines |= {"handlers": project.settings.get("SURELANE_HANDLERS", own)}
    lines["ingest"] = f"{at}:{ports['ingest']}/slack/events"
    if simulated() and os.environ.get("SLACK_APP_TOKEN") == DEMO_APP_TOKEN:
        lines["Socket Mode"] = "ingest is connected to the simulator, which posts nothing"
    if signs_in := token or (DEMO_API_TOKEN if public else None):
        bearer = DEMO_API_TOKEN if public else "$SURELANE_API_TOKEN"
        lines["operator's page"] = sign_in_link(page, signs_in)
        lines["assistants"] = f"MCP at {page}/mcp, with the header Authorization: Bearer {bearer}"
    shown = f" (token {DEMO_API_TOKEN})" if public else ""
    lines["operator's API"] = f"{page}/v1/jobs{shown}; or the command: surelane events list"
    lines |= {"private ports": private, "database": opened}
    return [
        "",
        "Surelane is not up yet. Ctrl-C ends it." if missing else "Surelane is up. Ctrl-C ends it.",
        *(f"  {name:<15}  {said}" for name, said in lines.items()),
        *(
            f"No message is answered: the {name} did not start: {why}. Its log is above."
            for name, why in (missing or {}).items()
        ),
        *([] if missing else [""]),
    ]

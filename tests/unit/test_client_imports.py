"""The client needs asyncpg and opentelemetry-api alone; what is missing names the package that has it."""

import json
import subprocess
import sys

import pytest

HEAVY = (
    *("aiohttp", "cryptography", "django", "opentelemetry.sdk", "prometheus_client", "psycopg", "pydantic"),
    *("sqlalchemy", "structlog", "typer"),
)
OURS = ("surelane_service", "surelane_operator", "surelane_drivers")


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_client_imports_nothing_of_the_services_and_works_where_their_libraries_are_missing() -> None:
    ran = run("import json, sys; from surelane import Queue; print(json.dumps(sorted(sys.modules)))")
    assert ran.returncode == 0, ran.stderr
    loaded = json.loads(ran.stdout)
    assert "surelane.queue" in loaded
    assert [name for name in loaded if name.startswith((*HEAVY, *OURS))] == []
    missing = f"import sys; sys.modules.update(dict.fromkeys({HEAVY!r}))"
    names = "Continuation, Event, Job, Queue"
    ran = run(f"{missing}; from surelane import {names}; print(Queue.enqueue)")
    assert ran.returncode == 0, ran.stderr


def test_a_connection_of_another_library_names_the_package_that_takes_it() -> None:
    ran = run(
        "import importlib.metadata, psycopg; importlib.metadata.entry_points = lambda **_: ()"
        "; from surelane import Queue; Queue(psycopg.AsyncConnection.__new__(psycopg.AsyncConnection))"
    )
    told = "This is a psycopg connection; install surelane-drivers: pip install 'surelane[psycopg]'"
    assert told in ran.stderr


@pytest.mark.slow
def test_the_operator_imports_the_sdk_of_assistants_only_where_they_are_on() -> None:
    on = "AccessSettings(DATABASE_URL='postgresql://', SURELANE_API_TOKEN='a-token-of-operators', SURELANE_MCP='read')"
    ran = run(
        "import sys; from surelane_operator.wiring import load_protocol"
        "; from surelane_operator.console.access.access_settings import AccessSettings"
        "; print([name for name in sys.modules if name.partition('.')[0] in ('mcp', 'mcp_types', 'starlette')])"
        f"; sys.modules['mcp'] = None; load_protocol({on})"
    )
    assert ran.stdout == "[]\n"
    assert "SURELANE_MCP needs the package mcp: pip install 'surelane-operator[mcp]'" in ran.stderr


def test_an_option_of_an_extension_names_it() -> None:
    ran = run(
        "import importlib.metadata; importlib.metadata.entry_points = lambda **_: ()"
        "; from surelane_operator.cli.command import app; app(['--shard', 'all', 'stats'])"
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--shard needs the package surelane-shards: pip install surelane-shards" in ran.stderr


def test_tests_of_a_team_learn_which_package_has_them() -> None:
    ran = run("import sys; sys.modules['surelane_dev'] = None; import surelane.testing")
    assert "surelane.testing needs the package surelane-dev: pip install surelane-dev" in ran.stderr

"""The client needs asyncpg and opentelemetry-api alone; what is missing names the package that has it."""

import json
import subprocess
import sys
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement

from surelane.errors import INSTALL

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
    told = f"This is a psycopg connection; install surelane-drivers: {INSTALL} 'surelane[psycopg]'"
    assert told in ran.stderr


@pytest.mark.slow
def test_the_operator_imports_the_sdk_of_assistants_only_where_they_are_on() -> None:
    on = "AccessSettings(DATABASE_URL='postgresql://', SURELANE_API_TOKEN='a-token-of-operators', SURELANE_MCP='read')"
    ran = run(
        "import asyncio, sys; from surelane_operator.wiring import assistants"
        "; from surelane_operator.console.access.access_settings import AccessSettings"
        "; print([name for name in sys.modules if name.partition('.')[0] in ('mcp', 'mcp_types', 'starlette')])"
        f"; sys.modules['mcp'] = None; asyncio.run(assistants({on}, None).__aenter__())"
    )
    assert ran.stdout == "[]\n"
    assert f"SURELANE_MCP needs the package mcp: {INSTALL} 'surelane-operator[mcp]'" in ran.stderr


def test_a_bot_s_development_brings_and_imports_no_library_of_agents() -> None:
    found, todo = set(), [Requirement("surelane-worker"), Requirement("surelane-dev[testing]")]
    while todo:
        each = todo.pop()
        if (each.name, *each.extras) not in found:
            found.add((each.name, *each.extras))
            extras = each.extras or {""}
            todo += [
                other
                for other in map(Requirement, requires(each.name) or ())
                if not other.marker or any(other.marker.evaluate({"extra": extra}) for extra in extras)
            ]
    assert "surelane-migrations" in {name for name, *_ in found}
    assert not [name for name, *_ in found if name.startswith(("surelane-agents", "pydantic-ai", "openai"))]


def test_the_command_of_another_package_imports_nothing_of_the_operator_s_nor_a_server() -> None:
    ran = run(
        "import sys; import surelane_operator.cli.__main__, surelane_dev.command, surelane_dev.system"
        "; print({'aiohttp', 'mcp', 'pydantic_ai', 'surelane_operator.cli.command'} & set(sys.modules))"
    )
    assert ran.stdout == "set()\n", ran.stderr


def test_what_pytest_loads_in_each_run_imports_no_service() -> None:
    ran = run(
        "import sys, surelane_dev.pytest_plugin; print({'aiohttp', 'asyncpg', 'slack_sdk'} & set(sys.modules))"
    )
    assert ran.stdout == "set()\n", ran.stderr


def test_an_option_of_an_extension_names_it() -> None:
    ran = run(
        "import importlib.metadata; importlib.metadata.entry_points = lambda **_: ()"
        "; from surelane_operator.cli.command import app; app(['--shard', 'all', 'stats'])"
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"--shard needs the package surelane-shards: {INSTALL} surelane-shards" in ran.stderr


def test_tests_of_a_team_learn_which_package_has_them() -> None:
    ran = run("import sys; sys.modules['surelane_dev'] = None; import surelane.testing")
    assert f"surelane.testing needs the package surelane-dev: {INSTALL} surelane-dev" in ran.stderr

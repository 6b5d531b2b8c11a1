"""The operator's API answers hostile requests as its OpenAPI document says."""

import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from tests.databases import as_role
from tests.needs import lacking
from tests.processes import clean_environment, service
from tests.system.test_operator_api import TOKEN, cursor

SEED = os.environ.get("SURELANE_FUZZ_SEED", "1")
"""It decides what is sent, so that a run repeats exactly."""
CONFIG = """
[checks]
# A schema cannot express the rules of schedules and cursors. /v1/jobs/{id} also matches /v1/jobs/bulk.
positive_data_acceptance.enabled = false
unsupported_method.enabled = false
allow_header_conformance.enabled = false
# After thirty wrong tokens of an address, a wrong one gets 429. test_operator_api.py asks every route without one.
ignored_auth.enabled = false

[[operations]]
# It has no end while its event lives. test_streams.py reads it.
include-operation-id = ["streamEvent"]
enabled = false

[[operations]]
# In a query, every number is also a text.
include-operation-id = ["listEvents", "searchEvents"]
checks.negative_data_rejection.enabled = false
"""


def environment(database: str) -> dict[str, str]:
    return {"DATABASE_URL": as_role(database, "surelane_operator"), "SURELANE_API_TOKEN": TOKEN}


FIRST, LAST = "0001-01-01T00:00:00", "9999-12-31T23:59:59"
TEXTS = [
    *("", " ", "0", "-1", "9" * 18, "9" * 30, "0" * 19 + "1" + "9" * 30, "1e999", "\u00b2", "9" * 5000),
    *("\0", "a\0b", "\n", "\u2028", "\ud800", "\udfff\\", "\U0010ffff", "x" * 199, "x" * 1001),
    *("%00", "%", "../..", "'", f"{FIRST}+14:00", f"{LAST}-14:00", f"{FIRST}Z", "infinity", "-infinity"),
    *("2026-01-01T00:00:00", "Europe", "posix", "0 0 30 2 *", "* * * * *", "none", "completed", "UTC"),
    *(cursor(f"5 {moment}") for moment in (f"{FIRST}+14:00", LAST, "infinity", "")),
    *(cursor("9" * 70), cursor("\u00b2 "), cursor("0" * 19 + "9" * 40), "====", "\u00e9"),
]
"""Texts that match a schema's string and often break code."""
RAW = [
    *("NaN", "1e999", "-Infinity", "9" * 5000, "null", "true", "[]", "{}"),
    *('{"\\u0000": 1}', '{"a": ["\\u0000"]}', '{"a": "\\ud800"}', '{"a": NaN}', '{"a": 1e999}'),
    *("[" * 200 + "]" * 200, '["\\u0000"]', '[""]', '["completed"]', '{"a": ' * 2000 + "1" + "}" * 2000),
]
"""JSON values besides those texts."""


def requests_of(document: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    """Yield a request for each operation, place and hostile value: method, path with query, body."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield from _varied(method.upper(), path, operation, document["components"]["schemas"])


def _varied(
    method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]
) -> Iterator[tuple[str, str, str | None]]:
    content = (
        operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    )
    model = schemas.get(content.get("$ref", "").rpartition("/")[2], {})
    sound: dict[str, object] = {"kind": "k", "schedule": "0 3 * * *", "goal": "g", "status": ["failed"]}
    sound |= {"name": "go", "paused": True, "action": "cancel"}
    body = {name: json.dumps(sound[name]) for name in model.get("required", ())}
    plain = path.replace("{id}", "1").replace("{kind}", "k").replace("{name}", "n")
    for text in TEXTS:
        encoded = quote(text, safe="", errors="surrogatepass")
        for parameter in operation["parameters"]:
            name = parameter["name"]
            if parameter["in"] == "query":
                yield method, f"{plain}?{name}={encoded}", None
            elif text not in {"", ".", "..", "../.."}:
                yield method, path.replace(f"{{{name}}}", encoded), _written(body) if body else None
    for name in model.get("properties", ()):
        for value in [*(json.dumps(text) for text in TEXTS), *RAW]:
            yield method, plain, _written({**body, name: value})
    if model:
        for value in RAW:
            yield method, plain, value


def _written(fields: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in fields.items()) + "}"


@pytest.mark.fuzz
@pytest.mark.timeout(1000)
async def test_no_value_in_any_place_is_a_server_error(database: str, connection: Connection) -> None:
    await Queue(connection).enqueue("k")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        service("surelane_operator", environment(database)) as operator,
        aiohttp.ClientSession(headers=headers) as session,
    ):
        async with session.get(f"{operator.private_url}/v1/openapi.json") as response:
            document = await response.json()
        failed, sent = [], 0
        for method, path, body in requests_of(document):
            sent += 1
            url = URL(operator.private_url + path, encoded=True)
            async with session.request(method, url, data=body) as response:
                if response.status >= 500:
                    failed.append((response.status, method, path[:200], (body or "")[:200]))
    assert not failed, failed[:20]
    assert sent > 1000


@pytest.mark.fuzz
@pytest.mark.timeout(1000)
async def test_the_api_keeps_to_its_document(database: str, connection: Connection, tmp_path: Path) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        lacking("schemathesis is not installed: make fuzz installs it")
    queue = Queue(connection)
    for number in range(5):
        await queue.enqueue("agent-turn", {"n": number}, item_key=f"k{number}")
    await queue.fan_out([Job("a"), Job("b")], Continuation("c"))
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    async with service("surelane_operator", environment(database)) as operator:
        fuzzing = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{operator.private_url}/v1/openapi.json"),
            *("--header", f"Authorization: Bearer {TOKEN}", "--max-examples", "50", "--no-color"),
            f"--seed={SEED}",
            cwd=tmp_path,
            env=clean_environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        report, _ = await fuzzing.communicate()
    assert fuzzing.returncode == 0, report.decode()

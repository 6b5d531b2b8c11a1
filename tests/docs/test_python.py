"""The Python of the documentation runs: in the order of a page, with what the page takes for granted."""

import builtins
import dis
import inspect
import json
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
import slack_sdk
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from surelane.calls import Connection
from surelane_worker import Handlers
from surelane_worker.handling.registry import registered_in
from tests.docs import shell
from tests.docs.blocks import ROOT, Block, blocks
from tests.sql.migrations import connected
from tests.system.slack_app import simulated

IMPORTED = """
from surelane_worker import *
handlers = Handlers()
"""


def ask_model(question: str) -> str:
    return question


async def make_plan(text: str) -> str:
    return text


async def run(plan: str) -> None: ...


GIVEN: dict[str, dict[str, Any]] = {
    "docs/handlers.md": {"ask_model": ask_model},
    "docs/durable.md": {
        "make_plan": make_plan,
        "asyncpg": asyncpg,
        **dict.fromkeys(["run", "pay", "release_goods", "call_the_chief"], run),
        **dict.fromkeys(["charge", "invoice", "reserve", "price", "price_by_weight"], run),
        **dict.fromkeys(["book_flight", "cancel_flight", "book_hotel", "cancel_hotel"], run),
    },
}
"""What a page takes for granted: functions of the reader's."""
BEGUN = ("docs/durable.md", "docs/jobs.md")
"""Pages whose blocks go on with the imports and the `handlers` of another page."""
WITHOUT_HANDLERS = ("docs/encryption.md", "docs/installing.md")
"""Pages that show something else, such as a Bolt app."""
AGAINST_A_QUEUE = ("connection.transaction", "Session(")
"""Blocks with one of these run against a queue, in tests of their own."""


def pages() -> Iterator[tuple[str, list[Block]]]:
    """Yield the pages with their blocks. Blocks with a role run with a bot: dev/tests/kit/test_{page,project}.py."""
    for page in dict.fromkeys(block.page for block in blocks("python")):
        found = [block for block in blocks("python", page=page) if not block.role]
        found = [block for block in found if not any(part in block.code for part in AGAINST_A_QUEUE)]
        if found:
            yield page, found


def missing(code: types.CodeType, names: dict[str, Any]) -> Iterator[str]:
    """Yield the global names that a function uses and that nothing defines."""
    for each in dis.get_instructions(code):
        known = each.argval in names or hasattr(builtins, str(each.argval))
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME") and not known:
            yield each.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from missing(constant, names)


@pytest.mark.parametrize(
    ("page", "found"), list(pages()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_page_runs_from_top_to_bottom(page: str, found: list[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples/bolt"))
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-test")
    monkeypatch.setattr(slack_sdk.WebClient, "auth_test", lambda *_, **__: {"ok": True})  # a Bolt app asks
    names: dict[str, Any] = {"__name__": "page", "__builtins__": builtins, **GIVEN.get(page, {})}
    try:
        if page in BEGUN:
            exec(IMPORTED, names)
        before = set(names)
        for block in found:
            exec(compile(block.code, str(block), "exec"), names)
        functions = [names[name] for name in set(names) - before]
        for function in functions:
            if inspect.isfunction(function) and function.__module__ == "page":
                assert not set(missing(function.__code__, names)), f"{page}: {function.__name__}"
    finally:
        sys.modules.pop("app", None)
    if page in WITHOUT_HANDLERS:
        return
    registered = names.get("handlers")
    assert isinstance(registered, Handlers)
    assert registered_in(registered).all() or page == "docs/durable.md"


@pytest.fixture
async def connection(shared_database: str) -> Any:
    async with connected(shared_database) as owner:
        await owner.execute("truncate agent.event; create table orders (number int8)")
        yield owner
        await owner.execute("drop table orders")


async def test_orders_are_stored_with_their_jobs(connection: Connection, shared_database: str) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        number: Mapped[int] = mapped_column(primary_key=True)

    engine = sqlalchemy.create_engine(shared_database.replace("postgresql:", "postgresql+psycopg:"))
    given = {"connection": connection, "engine": engine, "Session": Session, "order": Order(number=8)}
    found = [block for block in blocks("python") if any(part in block.code for part in AGAINST_A_QUEUE)]
    assert len(found) == 2
    for block in found:
        code = compile(block.code, str(block), "exec", flags=0x2000)  # with await
        if ran := eval(code, {"__name__": "page", **given}):
            await ran
    engine.dispose()
    assert await connection.fetchval("select array_agg(number order by number) from orders") == [7, 8]
    stored = await connection.fetch("select coalesce(dedupe_key, item_key) from agent.event order by id")
    assert [row[0] for row in stored] == ["slack:C1:17.1", "order:8"]


async def test_requests_to_the_simulator_are_answered() -> None:
    sent = 0
    async with simulated() as pair:
        for block in blocks("sh", page="docs/simulator.md"):
            for words in shell.commands(block):
                if words[0] == "curl":
                    (url,) = [word for word in words if "/control/" in word]
                    body = json.loads(words[words.index("-d") + 1])
                    path = re.sub(r"^http://[^/]+", "", url)
                    await pair.control.request(words[words.index("-X") + 1], path, body)
                    sent += 1
    assert sent == 3

"""The examples of docs/testing.md, and of the notes that a new project has for assistants, run as they are written."""

import inspect
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from surelane.testing import Bot, Slack
from surelane_worker import Handlers

ROOT = Path(__file__).parents[3]
PAGE, NOTES = "docs/testing.md", "dev/src/surelane_dev/template/AGENTS.md.txt"


def blocks(page: str, sort: str) -> list[str]:
    return re.findall(rf"```python {sort}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def defined(page: str, code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, page, "exec"), names)
    return names


TESTS = [
    pytest.param(page, test, id=name)
    for page in (PAGE, NOTES)
    for code in blocks(page, "test")
    for name, test in defined(page, code).items()
    if name.startswith("test_")
]


@pytest.fixture
def page() -> str:
    return PAGE


@pytest.fixture
def handlers(page: str) -> Handlers:
    (code,) = blocks(page, "handlers")
    found: Handlers = defined(page, code)["handlers"]
    return found


@pytest.mark.parametrize(("page", "example"), TESTS)
async def test_example(example: Callable[..., Coroutine[Any, Any, None]], bot: Bot, slack: Slack) -> None:
    given = {"bot": bot, "slack": slack}
    await example(**{name: given[name] for name in inspect.signature(example).parameters})


@pytest.mark.usefixtures("virtual_database")
def test_example_in_virtual_time(handlers: Handlers) -> None:
    (code,) = blocks(PAGE, "virtual")
    example = defined(PAGE, code)["test_releases_once_although_a_worker_is_lost"]
    example(handlers=handlers)


def test_page_has_examples() -> None:
    assert len(TESTS) == 4

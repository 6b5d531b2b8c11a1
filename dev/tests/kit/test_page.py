"""The examples of docs/testing.md run as they are written."""

import inspect
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from surelane.testing import Bot, Slack
from surelane_worker import Handlers

PAGE = (Path(__file__).parents[3] / "docs/testing.md").read_text()


def blocks(sort: str) -> list[str]:
    return re.findall(rf"```python {sort}\n(.*?)```", PAGE, re.DOTALL)


def defined(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "docs/testing.md", "exec"), names)
    return names


TESTS = [test for code in blocks("test") for name, test in defined(code).items() if name.startswith("test_")]


@pytest.fixture
def handlers() -> Handlers:
    (code,) = blocks("handlers")
    found: Handlers = defined(code)["handlers"]
    return found


@pytest.mark.parametrize("example", TESTS, ids=lambda example: example.__name__)
async def test_example(example: Callable[..., Coroutine[Any, Any, None]], bot: Bot, slack: Slack) -> None:
    given = {"bot": bot, "slack": slack}
    await example(**{name: given[name] for name in inspect.signature(example).parameters})


@pytest.mark.usefixtures("virtual_database")
def test_example_in_virtual_time(handlers: Handlers) -> None:
    (code,) = blocks("virtual")
    example = defined(code)["test_releases_once_although_a_worker_is_lost"]
    example(handlers=handlers)


def test_page_has_examples() -> None:
    assert len(TESTS) == 3

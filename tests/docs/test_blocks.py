"""Every fenced block has a language with a runner, and holds what its runner wants."""

import re
import tomllib
from collections.abc import Callable
from json import loads
from pathlib import Path
from typing import Any

import pytest
import yaml

from surelane import __version__
from surelane_agents.models.budget import Budget
from surelane_agents.tools.servers import servers
from surelane_dev.project import find_project
from surelane_operator.api.bulk import Bulk
from tests.docs import shell
from tests.docs.blocks import PAGES, ROOT, Block, blocks
from tests.docs.names import services, settings, variables

ELSEWHERE = {
    "python": "test_python.py runs it",
    "sql": "test_sql.py runs it",
    "js": "tests/browser/test_followed_answer.py runs it",
}


class Loader(yaml.SafeLoader):
    """Read Compose's own tags, too."""


Loader.add_multi_constructor("!", lambda loader, _, node: loader.construct_mapping(node))


def sh(block: Block) -> None:
    """Check each command; the tiers that have its program run it."""
    found = list(shell.commands(block))
    assert found, "it has no command"
    for command in found:
        shell.check(command, ROOT)


def ini(block: Block) -> None:
    """Each line of an environment file sets a variable that is read."""
    assert block.code
    for line in block.code.splitlines():
        assert line.partition("=")[0] in variables(), line


def text(block: Block) -> None:
    """A drawing or an output has no commands."""
    assert not re.search(r"^(surelane|docker|kubectl|curl|pip|python) ", block.code, re.MULTILINE)


def toml(block: Block, tmp: Any) -> None:
    tables = tomllib.loads(block.code)["tool"]
    assert tables
    (tmp / "pyproject.toml").write_text(block.code)
    assert find_project(tmp).handlers


def json(block: Block, tmp: Any) -> None:
    """A block names MCP servers, or is a budget or the body of a bulk change."""
    found = loads(block.code)
    if "mcpServers" not in found:
        (Budget if "prices" in found else Bulk).model_validate(found)
        return
    (tmp / "servers.json").write_text(block.code)
    assert servers(tmp / "servers.json")


def yaml_(block: Block) -> None:
    found = yaml.load(block.code, Loader)
    if block.role:  # a part of a project's file: dev/tests/kit/test_project.py writes it
        return
    assert isinstance(found, dict)
    assert set(found.get("services", ())) <= services()
    for generated in found.get("configMapGenerator", ()):
        for literal in generated["literals"]:
            name = literal.partition("=")[0]
            assert name in variables() or name.startswith("OTEL_"), name
    for path in [*found.get("resources", ()), *found.get("components", ())]:
        if "://" in path:  # another repository's: test_team_overlay.py renders it
            continue
        assert (ROOT / path.removeprefix("surelane/") / "kustomization.yaml").is_file(), path


def dockerfile(block: Block) -> None:
    assert block.code
    for line in block.code.splitlines():
        word, _, rest = line.strip().partition(" ")
        assert word in {"FROM", "USER", "RUN", "COPY", "ENV"}, line
        if word == "FROM":
            assert rest == f"surelane-worker:{__version__}"
        if word == "ENV":
            assert rest.partition("=")[0] in settings()


RUNNERS: dict[str, Callable[..., None]] = {
    "sh": sh, "ini": ini, "text": text, "toml": toml, "json": json, "yaml": yaml_, "dockerfile": dockerfile,
}  # fmt: skip


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_block_is_checked(block: Block, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert block.language, f"{block}: write a language behind the fence, or `text`"
    assert block.language in {*RUNNERS, *ELSEWHERE}, f"{block}: {block.language} has no runner"
    monkeypatch.setenv("SURELANE_OPERATOR_DATABASE_URL", "postgresql://")
    monkeypatch.setenv("DATABASE_URL", "postgresql://")
    monkeypatch.setenv("KEY", "any")
    monkeypatch.setenv("CRM_SECRET", "any")
    if runner := RUNNERS.get(block.language):
        wants = runner.__code__.co_varnames[: runner.__code__.co_argcount]
        runner(*(block, tmp_path)[: len(wants)])


def commands_in(page: Path) -> list[str]:
    return re.findall(r"(?<!`)`(surelane(?: [^`]+)?)`(?!`)", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_within_the_text_and_their_options_exist(page: Path) -> None:
    """They may stand for several: `KEY` and `…` are the reader's."""
    for code in commands_in(page):
        command, (_, *words) = shell.COMMAND, code.replace("[", "").replace("]", "").split()
        while words and re.fullmatch(r"[a-z]+", words[0]) and hasattr(command, "commands"):
            assert words[0] in command.commands, code
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        options |= {"--install-completion"}
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, code

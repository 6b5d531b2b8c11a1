"""Check the commands of a block as far as that works without running them: programs, options, files, names."""

import importlib.util
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import typer

from surelane_operator.api.api import OperatorApi
from surelane_operator.cli.command import app
from tests.docs.blocks import ROOT, Block
from tests.docs.names import services, variables, workloads

COMMAND = typer.main.get_command(app)
_SETTING = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command. Comments, redirections and what runs inside ``$(…)`` are left out."""
    text = re.sub(r"(^|\s)#.*", "", block.code.replace("\\\n", " "))
    text = re.sub(r"(?<=\s)[<>]{1,2} *\S+", "", text)
    # A quoted text may have line breaks, so a line ends only where it can be read.
    pending = ""
    for line in text.splitlines():
        pending += line
        try:
            lexer = shlex.shlex(re.sub(r"\$\([^)]*\)", "x", pending), posix=True, punctuation_chars="&|;")
            lexer.whitespace_split = True
            lexer.commenters = ""
            words = list(lexer)
        except ValueError:
            pending += "\n"
            continue
        pending = ""
        command: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set("&|;"):
                if command:
                    yield command
                command = []
            else:
                command.append(word)
    assert not pending, f"{block}: {pending} has an open quote"


def check(words: Sequence[str], folder: Path = ROOT) -> None:
    """Check one command.

    Raises:
        AssertionError: it has a name, an option or a file that does not exist.
    """
    words = list(words)
    if words and words[0] == "export":
        words = words[1:]
    while words and (given := _SETTING.fullmatch(words[0])):
        name = given[1]
        assert name.islower() or name in variables() or name.startswith("OTEL_"), f"{name} is no setting"
        words = words[1:]
    if words:
        program, *rest = words
        known = PROGRAMS.get(program.rpartition("/")[2])
        assert known, f"{program} has no check: add one to PROGRAMS"
        known(rest, folder)


def _surelane(words: Sequence[str], _: Path) -> None:
    command, name, rest = COMMAND, "surelane", list(words[2:] if words[0] == "--shard" else words)
    while hasattr(command, "commands"):
        assert set(rest[:1]) & set(command.commands), f"{name} has no command {rest[:1]}"
        name, command = f"{name} {rest[0]}", command.commands[rest.pop(0)]
    try:
        command.make_context(name, rest)
    except Exception as error:
        # A file that is given may be missing here: it is the reader's.
        if not re.search("does not exist|No such file", getattr(error, "message", "")):
            raise AssertionError(f"{name} {rest}: {error!r}") from error


def _docker(words: Sequence[str], folder: Path) -> None:
    if words[:2] == ["network", "create"]:
        files = [*folder.glob("examples/*/*.yaml"), *folder.glob("extensions/*/*/*.yaml")]
        read = (re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", file.read_text()) for file in files)
        assert any(re.search(rf'external: true, name: "{words[-1]}"', text) for text in read), words
        return
    if words[0] in {"tag", "push"}:
        assert all(word.startswith(("registry.example.com/", "surelane-")) for word in words[1:]), words
        return
    if words[0] != "compose":
        assert words[0] == "build", words
        file = words[words.index("-f") + 1] if "-f" in words else "."
        assert (folder / file).exists(), file
        assert (folder / words[-1]).exists(), words
        return
    if words[1] == "-f":
        assert (folder / words[2]).exists(), words
        words = [words[0], *words[3:]]
    rest = [word for word in words[1:] if not word.startswith("-")]
    assert rest[0] in {"up", "down", "logs", "exec", "run", "build", "stop", "ps"}, rest
    if rest[0] in {"logs", "exec", "run", "stop"}:
        named = [word for word in rest[1:] if not re.fullmatch(r"\d+m|surelane", word)]
        count = 1 if rest[0] in {"exec", "run"} else len(named)
        assert set(named[:count]) <= services(), named
    if "--scale" in words:
        assert words[words.index("--scale") + 1].partition("=")[0] in services()


def _kubectl(words: Sequence[str], folder: Path) -> None:
    for before, word in pairwise(words):
        if before == "-k" and word != "YOUR_OVERLAY":
            assert (folder / word / "kustomization.yaml").is_file(), word
        if target := re.fullmatch(r"(deployment|job|statefulset)/([\w.-]+)", word):
            assert re.sub(r"-\d+\.\d+\.\d+(rc\d+)?$", "", target[2]) in workloads(), word


def _make(words: Sequence[str], _: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(words) <= targets, words


def _python(words: Sequence[str], folder: Path) -> None:
    assert words[0] == "-m", words
    if words[1] == "pytest":
        _pytest(words[2:], folder)
    elif words[1] not in {"venv", "coverage"}:  # the page installs coverage
        assert importlib.util.find_spec(words[1]), words[1]


def _pytest(words: Sequence[str], folder: Path) -> None:
    for word in words:
        if word.startswith("tests/"):
            assert (folder / word).exists(), word


def _pip(words: Sequence[str], _: Path) -> None:
    assert words[0] == "install", words
    for word in words[1:]:
        if word.startswith((".", "surelane")):
            assert "--find-links" in words, "an index may have another package of this name"
        if word.startswith("surelane"):
            name, extras = word.rstrip("]").partition("[")[::2]
            files = [ROOT / path / "pyproject.toml" for path in ("dev", "migrations")]
            files += ROOT.glob("*s/*/pyproject.toml")  # services, extensions
            files += ROOT.glob("shared/*/pyproject.toml")
            (text,) = [each for file in files if f'name = "{name}"' in (each := file.read_text())]
            assert all(re.search(rf"^{extra} = ", text, re.MULTILINE) for extra in extras.split(",") if extra)


def _curl(words: Sequence[str], _: Path) -> None:
    (url,) = [word for word in words if word.startswith("http")]
    path = urlsplit(url).path
    if path.startswith("/v1/"):
        assert path in OperatorApi(cast("Any", None), cast("Any", None)).document()["paths"], path
    if "-d" in words:
        json.loads(words[words.index("-d") + 1])


def _cd(words: Sequence[str], folder: Path) -> None:
    assert words[0] in {"mybot", "deploybot", "../harness"} or (folder / words[0]).is_dir(), words


def _any(_: Sequence[str], __: Path) -> None:
    """Take any words: the program is not ours."""


def _file(words: Sequence[str], folder: Path) -> None:
    assert (folder / words[0]).is_file(), words


PROGRAMS: Mapping[str, Callable[[Sequence[str], Path], None]] = {
    "surelane": _surelane,
    "docker": _docker,
    "kubectl": _kubectl,
    "make": _make,
    "python": _python,
    "python3": _python,
    "pip": _pip,
    "pytest": _pytest,
    "curl": _curl,
    "cd": _cd,
    "cp": _file,
    "sh": _file,
    **dict.fromkeys(
        (".", "git", "sed", "echo", "install", "kind", "uv", "pg_dump", "pg_restore", "psql", "$EDITOR"), _any
    ),
}

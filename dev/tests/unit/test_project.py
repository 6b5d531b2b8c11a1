"""A project's table in ``pyproject.toml`` names its handlers, and `surelane new` writes a sound project."""

import ast
import tomllib
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from surelane import __version__
from surelane.errors import SettingsError
from surelane_dev.command import new
from surelane_dev.new import NEEDS, NewError, write_project
from surelane_dev.project import Project, find_project
from surelane_dev.simulator.manifest import manifest_of
from tests.deploy.commands import ROOT


def test_a_new_project_s_files_can_be_read_and_those_for_a_host_are_the_repository_s(tmp_path: Path) -> None:
    root = tmp_path / "deploy-bot"
    write_project(root)
    for file in root.rglob("*"):
        assert "$" not in file.name
        if file.suffix == ".py":
            ast.parse(file.read_text())
    assert tomllib.loads((root / "pyproject.toml").read_text())["project"]["name"] == "deploy-bot"
    manifest = manifest_of(yaml.safe_load((root / "manifest.yaml").read_text()))
    assert [command.command for command in manifest.commands] == ["/status"]
    services = yaml.safe_load((root / "compose.yaml").read_text())["services"]
    assert services.keys() == {"settings", "db", "migrate", "ingest", "worker", "operator"}
    assert "SURELANE_HANDLERS" not in str(services), "the image names the handlers"
    assert "ENV SURELANE_HANDLERS=deploy_bot.handlers:handlers" in (root / "Dockerfile").read_text()
    for name, source in (
        ("compose.tls.yaml", "examples/compose/tls.yaml"),
        ("compose.backups.yaml", "examples/compose/backups.yaml"),
        ("accounts.sql", "k8s/components/timescaledb/accounts.sql"),
    ):
        assert (root / name).read_text() == (ROOT / source).read_text()


def test_a_new_agent_has_a_fake_model_and_real_packages_and_a_bolt_app_is_named(tmp_path: Path) -> None:
    root = tmp_path / "deploy-bot"
    write_project(root, "agent")
    assert find_project(root).model == "fake"
    assert tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"] == [
        f"surelane-agents=={__version__}"
    ]
    demonstration = (root / "compose.override.yaml").read_text().replace("!reset", "")
    worker = yaml.safe_load(demonstration)["services"]["worker"]
    assert worker["environment"]["SURELANE_MODEL"] == "${SURELANE_MODEL:-fake}"
    assert "pydantic-ai-slim[mcp,openai]" in (root / "Dockerfile").read_text()
    root = tmp_path / "bolt/deploy-bot"
    write_project(root, "bolt")
    assert find_project(root).handlers == "deploy_bot.handlers:app"
    assert "ENV SURELANE_HANDLERS=deploy_bot.handlers:app" in (root / "Dockerfile").read_text()
    assert "slack-bolt" in (root / "Dockerfile").read_text()
    assert f'["surelane-bolt=={__version__}"]' in (root / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("links", "printed"),
    [
        ("/our wheels", "'/our wheels' --editable '.[dev]'"),
        ("", "DIRECTORY --editable '.[dev]'   # the directory with"),
    ],
)
def test_the_printed_lines_install_what_a_kind_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: str, printed: str
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", links)
    assert not any("pip" in line for line in write_project(tmp_path / "plain"))
    assert not any("pip" in line for line in write_project(tmp_path / "there", "bolt")), "both are installed"
    monkeypatch.setitem(NEEDS, "bolt", ("surelane_bolt", "no_such_module"))
    lines = write_project(tmp_path / "mybot", "bolt")
    assert lines[2].startswith(f"  pip install --find-links {printed}")
    assert lines[3] == "  surelane dev"


@pytest.mark.parametrize(
    "name", ["Bot", "a--b", "-a", "1bot", "a" * 31, "json", "class", "surelane-bot", "tests", "ä"]
)
def test_a_name_that_cannot_be_used_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(NewError, match="cannot be a bot's name: "):
        write_project(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mybot").mkdir()
    (tmp_path / "mybot/notes").touch()
    with pytest.raises(NewError, match="is not an empty directory"):
        write_project(tmp_path / "mybot")
    assert [file.name for file in (tmp_path / "mybot").iterdir()] == ["notes"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("[tool.surelane", "cannot be read"),
        ("tool.surelane = 1", "is not a table"),
        ("[tool.surelane]\nhandler = 'a:b'", "not handler"),
        ("[tool.surelane]\nhandlers = 1", "handlers is not a text"),
        ("[tool.surelane]\nmodel = 1", "model is not a text"),
    ],
)
def test_a_table_that_cannot_be_used_is_named(tmp_path: Path, written: str, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text(written)
    with pytest.raises(SettingsError, match=said):
        find_project(tmp_path)


def test_a_directory_without_a_project_has_the_built_in_handlers(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert find_project(tmp_path) == Project(tmp_path)


def test_the_command_writes_a_project_once_and_of_one_kind(tmp_path: Path) -> None:
    command, root = typer.Typer(), tmp_path / "deploy-bot"
    command.command()(new)
    mixed = CliRunner().invoke(command, [str(root), "--agent", "--bolt"])
    assert (mixed.exit_code, root.exists()) == (2, False)
    written, refused = (CliRunner().invoke(command, [str(root)]) for _ in range(2))
    assert (written.exit_code, "  surelane dev" in written.stdout) == (0, True)
    made = Project(root, "deploy_bot.handlers:handlers", root / "manifest.yaml")
    assert find_project(root / "tests") == made, "it is found from a directory below it"
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "deploy-bot" in refused.stderr

"""The wheels install together from a directory, as a team gets them, and are the same at every build."""

import hashlib
import json
import os
import shutil
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from dev.tests.system.up import up
from surelane_dev.processes import ChildProcess
from surelane_dev.simulator.client import SimulatorClient
from tests.deploy.commands import ROOT, run, version
from tests.deploy.packages import INDEXES, SOURCES, assert_its_tests_pass, build, environment


def test_every_package_has_the_licence_and_the_version() -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    for source in SOURCES.values():
        assert (ROOT / source / "LICENSE").read_bytes() == licence, source
        project = tomllib.loads((ROOT / source / "pyproject.toml").read_text())["project"]
        assert project["version"] == version()


@pytest.mark.packages
def test_wheels_have_every_file_and_are_always_the_same(wheels: dict[str, Path], tmp_path: Path) -> None:
    assert wheels.keys() == SOURCES.keys()
    again = build(tmp_path)
    for name, source in SOURCES.items():
        assert wheels[name].name == f"{name}-{version()}-py3-none-any.whl"
        assert digest(again[name]) == digest(wheels[name]), name
        held = zipfile.ZipFile(wheels[name]).namelist()
        below = ROOT / source / "src"
        files = {
            str(Path(folder, file).relative_to(below))
            for folder, _, names in os.walk(below, followlinks=True)  # the SQL files are behind links
            for file in names
            if "__pycache__" not in folder
        }
        assert f"{name}/py.typed" in files
        assert files <= set(held), files - set(held)
        assert any(file.endswith("licenses/LICENSE") for file in held)
        assert {file for file in held if ".dist-info/" not in file} == files


@pytest.mark.packages
def test_source_archives_make_the_same_wheels(wheels: dict[str, Path], tmp_path: Path) -> None:
    archives = sorted(wheels["surelane"].parent.glob("*.tar.gz"))
    assert len(archives) == len(SOURCES)
    for archive in archives:
        with tarfile.open(archive) as held:
            held.extractall(tmp_path, filter="data")
        source = tmp_path / archive.name.removesuffix(".tar.gz")
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "built", where=source)
    for wheel in wheels.values():
        assert digest(tmp_path / "built" / wheel.name) == digest(wheel), wheel.name


@pytest.mark.packages
@pytest.mark.timeout(300)
def test_the_client_is_four_packages_without_a_service(wheels: dict[str, Path], tmp_path: Path) -> None:
    held = zipfile.ZipFile(wheels["surelane"]).namelist()
    assert {file.partition("/")[0] for file in held} == {"surelane", f"surelane-{version()}.dist-info"}
    assert not any(file.endswith("entry_points.txt") for file in held), "the command is the operator's"
    bin_, pip = environment(tmp_path)
    links = ("--find-links", wheels["surelane"].parent)
    run(*pip, "install", "--quiet", *links, "surelane", within=240, env=INDEXES)
    listed = json.loads(run(*pip, "list", "--format=json").stdout)
    own = {package["name"] for package in listed} - {"pip", "setuptools", "wheel"}
    assert own == {"surelane", "asyncpg", "opentelemetry-api", "typing_extensions"}
    assert "Queue" in run(bin_ / "python", "-c", "import surelane; print(surelane.Queue)").stdout


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def interpreters() -> dict[str, str]:
    """Return the other Pythons of this machine that the packages promise to run on, by version."""
    found: dict[str, str] = {}
    for minor in (12, 13):
        own = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        if path := next(map(str, own), None) or shutil.which(f"python3.{minor}"):
            found[f"3.{minor}"] = path
    return found


@pytest.mark.packages
@pytest.mark.timeout(900)
@pytest.mark.parametrize("python", interpreters().values(), ids=interpreters())
def test_wheels_install_on_other_pythons(python: str, wheels: dict[str, Path], tmp_path: Path) -> None:
    """With the pip that the interpreter ships, and with uv. A new project's tests pass."""
    fresh, links = tmp_path / "fresh", ("--find-links", wheels["surelane"].parent)
    own, pip = environment(tmp_path, python)
    run(*pip, "install", "--quiet", *links, "surelane-dev[testing]", "uv", within=800, env=INDEXES)
    run(*pip, "check")
    run(own / "surelane", "new", "mybot", where=tmp_path)
    assert_its_tests_pass(own / "python", tmp_path / "mybot")

    run(own / "uv", "venv", "--quiet", "--python", own / "python", fresh)
    install = ("pip", "install", "--quiet", "--python", fresh / "bin/python")
    run(own / "uv", *install, *links, "surelane-dev", within=240, env=INDEXES)
    assert version() in run(fresh / "bin/surelane", "--version").stdout


@pytest.fixture(scope="module")
def team(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Install what a team begins with; return its programs and its environment.

    With the pip of Python 3.11, whose resolver gives up on requirements that newer ones resolve.
    """
    programs, pip = environment(tmp_path_factory.mktemp("team"))
    path = f"{programs}:{os.environ['PATH']}"
    env = {**INDEXES, "PIP_FIND_LINKS": str(wheels["surelane"].parent), "PATH": path}
    if " 23." not in run(*pip, "--version").stdout:
        run(*pip, "install", "--quiet", "pip==23.2.1", within=120, env=INDEXES)
    run(*pip, "install", "--quiet", "surelane-dev", "uv", within=540, env=env)
    run(*pip, "check")
    return programs, env


@pytest.mark.packages
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["agent", "bolt"])
def test_a_new_agent_and_a_bolt_app_run_as_printed(
    kind: str, team: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """The command brings nothing for them. Without it a line says what to install; the printed line does."""
    bin_, env = team
    printed = run(bin_ / "surelane", "new", f"--{kind}", "mybot", where=tmp_path, env=env).stdout.splitlines()
    project = tmp_path / "mybot"
    load = "from surelane_worker.wiring import load_handlers; load_handlers('mybot.handlers:handlers')"
    refused = run(bin_ / "python", "-c", load, where=project, check=False)
    needs = f"it needs surelane-{kind}{'s' * (kind == 'agent')}, which is not installed: pip install --find-links "
    assert needs in refused.stderr.splitlines()[-1]
    enter, install, start = (line.strip() for line in printed[1:-1])
    assert (enter, start) == ("cd mybot", "surelane dev")
    assert f"--find-links {env['PIP_FIND_LINKS']} " in install
    run("sh", "-c", install, where=project, within=540, env=env)
    assert_its_tests_pass(bin_ / "python", project)


@pytest.mark.packages
@pytest.mark.timeout(900)
async def test_a_team_starts_from_the_wheels(team: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    bin_, env = team
    compile_ = (
        "pip",
        "compile",
        "--quiet",
        "--find-links",
        env["PIP_FIND_LINKS"],
        ROOT / "dev/pyproject.toml",
    )
    plan = run(bin_ / "uv", *compile_, within=240, env=INDEXES)
    assert f"surelane-worker=={version()}" in plan.stdout

    run(bin_ / "surelane", "new", "mybot", where=tmp_path)
    project, pip = tmp_path / "mybot", (bin_ / "python", "-m", "pip")
    run(*pip, "install", "--quiet", "--editable", f"{project}[dev]", within=240, env=env)
    assert_its_tests_pass(bin_ / "python", project)
    async with up(project / ".surelane/postgres", project=project, python=bin_ / "python") as system:
        await system.ready()
        assert f"{bin_}/" in " ".join(system.member("surelane_dev.program worker").cmdline())
        async with SimulatorClient(system.page) as slack:
            message = (await slack.say("hello", channel="general", mention=True))["message"]
            assert (await slack.reply(message, 90))["text"] == "You said: hello"
        assert await system.end() == 0
    assert not ChildProcess.running

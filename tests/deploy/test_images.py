"""Each image holds its program and nothing else, and runs without any privilege."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.commands import ROOT, run, version
from tests.deploy.conftest import IMAGES

pytestmark = [pytest.mark.container, pytest.mark.timeout(600)]

SITE = "opt/venv/lib/python3.13/site-packages"
SERVICES = ("ingest", "worker", "operator")
SHARED = {"surelane": "client", "surelane_service": "service"}
SOURCES = {
    **{package: ROOT / "shared" / at / "src" / package for package, at in SHARED.items()},
    **{f"surelane_{name}": ROOT / f"services/{name}/src/surelane_{name}" for name in SERVICES},
    **{
        f"surelane_{name}": ROOT / f"extensions/{name}/src/surelane_{name}"
        for name in ("agents", "bolt", "drivers", "encryption", "shards")
    },
    "surelane_migrations": ROOT / "migrations/src/surelane_migrations",
}
PACKAGES = {
    **{name: {*SHARED, f"surelane_{name}", "surelane_encryption"} for name in SERVICES},
    "operator": {*SHARED, "surelane_operator", "surelane_encryption", "surelane_shards"},
    "worker": {
        *SHARED,
        "surelane_worker",
        "surelane_agents",
        "surelane_bolt",
        "surelane_drivers",
        "surelane_encryption",
    },
    "migrations": {"surelane_migrations"},
    "simulator": {*SHARED},
}
CACHES = (".cache/", ".pytest_cache/", ".ruff_cache/")
LEFTOVERS = ("pip/", "hatchling/", "requirements/", "wheels/", "src/", *CACHES)
UNPRIVILEGED = ("--user=65532", "--cap-drop=ALL", "--security-opt=no-new-privileges")
SANDBOX = ("--read-only", "--network=none", *UNPRIVILEGED)

LISTING = """
import os
for directory, below, files in os.walk("/"):
    below[:] = [name for name in below if os.path.join(directory, name) not in {"/proc", "/sys", "/dev"}]
    for name in files:
        print(os.path.join(directory, name)[1:])
"""


@pytest.fixture(scope="module", params=IMAGES)
def image(request: pytest.FixtureRequest, images: dict[str, str]) -> tuple[str, str]:
    """Return an image's short name, and its name with tag."""
    name: str = request.param
    return name, images[name]


@pytest.fixture(scope="module")
def files(image: tuple[str, str]) -> set[str]:
    """Return the image's files that its base does not have."""
    return _files(image[1]) - _files("python:3.13-slim-trixie")


def _files(image: str) -> set[str]:
    listed = run("docker", "run", "--rm", "--user=0", "--entrypoint=python3", image, "-c", LISTING).stdout
    return set(listed.split("\n"))


def _inspect(image: str) -> dict[str, Any]:
    (inspected,) = json.loads(run("docker", "image", "inspect", image).stdout)
    read: dict[str, Any] = inspected
    return read


def _source_files(directory: Path) -> set[str]:
    return {
        str(path.relative_to(directory))
        for folder in (directory, *(each for each in directory.iterdir() if each.is_symlink()))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_has_its_own_program_and_nothing_else_of_ours(image: tuple[str, str], files: set[str]) -> None:
    ours = {file for file in files if "surelane" in file or file.startswith("app/")}
    expected = {
        f"{SITE}/{each}/{file}" for each in PACKAGES[image[0]] for file in _source_files(SOURCES[each])
    }
    if image[0] == "simulator":
        simulator = ROOT / "dev/src/surelane_dev/simulator"
        expected |= {"app/surelane_dev/__init__.py"}
        expected |= {f"app/surelane_dev/simulator/{file}" for file in _source_files(simulator)}
    metadata = {file for file in ours if ".dist-info/" in file or "/__pycache__/" in file or "/bin/" in file}
    assert ours - metadata == expected


def test_has_no_tests_caches_or_build_tools(files: set[str]) -> None:
    assert files
    outside = {file for file in files if not file.startswith(("opt/venv/", "app/", "etc/", ".dockerenv"))}
    assert outside <= {""}, sorted(outside)[:20]
    for file in files:
        below = file.removeprefix(SITE + "/")
        assert not below.startswith(LEFTOVERS), file
        assert not below.startswith(("tests/", "surelane/tests", "app/tests")), file


def test_runs_without_any_privilege(image: tuple[str, str]) -> None:
    arguments = ("--help",) if image[0] in {"migrations", "simulator"} else ()
    done = run("docker", "run", "--rm", *SANDBOX, image[1], *arguments, check=False)
    if arguments:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2, done.stderr
        assert "DATABASE_URL is not set" in done.stderr


def test_operators_find_their_command_in_it(image: tuple[str, str]) -> None:
    if "surelane_operator" in PACKAGES[image[0]]:
        command = run("docker", "run", "--rm", *SANDBOX, "--entrypoint=surelane", image[1], "--version")
        assert command.stdout.strip() == f"surelane {version()}"


def test_says_what_it_is_and_how_it_runs(image: tuple[str, str]) -> None:
    configured = _inspect(image[1])["Config"]
    assert configured["User"] == "65532:65532"
    assert configured["Entrypoint"][:2] == ["python", "-m"], "a program, not a shell"
    labels = configured["Labels"]
    assert labels["org.opencontainers.image.title"] == f"surelane-{image[0]}"
    assert labels["org.opencontainers.image.version"] == version()
    assert labels["org.opencontainers.image.description"]
    check = configured["Healthcheck"]["Test"]
    assert check == ["NONE"] if image[0] == "migrations" else check[:2] == ["CMD", "python"]


def test_adds_little_to_its_base(image: tuple[str, str]) -> None:
    added = _inspect(image[1])["Size"] - _inspect("python:3.13-slim-trixie")["Size"]
    # 22 MB are debugging symbols in the wheel of zstandard: 6 MB of a download. It opens an encrypted event in less
    # than half the CPU. The SDK of the Model Context Protocol, with what it needs, takes 12 MB of the operator's.
    assert added < {"migrations": 60, "operator": 165}.get(image[0], 153) * 1_000_000

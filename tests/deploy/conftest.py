"""Share images and wheels among the tests of deployments."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from tests.deploy.commands import REGISTRY, ROOT, run, version
from tests.deploy.compose import engine
from tests.deploy.packages import build, wheels_in

IMAGES = ("ingest", "worker", "operator", "migrations", "simulator")
BUILT_FROM = ("compose", "shared", "services", "extensions", "migrations", "dev", "requirements")
BUILT_BY = ("Makefile", ".dockerignore", "compose.yaml", "compose.override.yaml")


@pytest.fixture(scope="session")
def images() -> dict[str, str]:
    """Build the images as ``make images`` does; return their names with tags."""
    engine()
    run("make", "--no-print-directory", "images", env={"SURELANE_REGISTRY": REGISTRY}, within=600)
    return {image: f"{REGISTRY}surelane-{image}:{version()}" for image in IMAGES}


@pytest.fixture(scope="session")
def next_version(images: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the images of the release after this one, from the same code; return its version."""
    major, minor, patch = Version(version()).release
    following = f"{major}.{minor}.{patch + 1}"
    tree = tmp_path_factory.mktemp("next")
    for name in BUILT_FROM:
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILT_BY:
        shutil.copy(ROOT / name, tree)
    for metadata in tree.rglob("pyproject.toml"):
        metadata.write_text(metadata.read_text().replace(f'{version()}"', f'{following}"'))
    run("make", "--no-print-directory", "images", env={"SURELANE_REGISTRY": REGISTRY}, where=tree, within=600)
    yield following
    following_images = [f"{REGISTRY}surelane-{image}:{following}" for image in images]
    run("docker", "image", "rm", *following_images, check=False)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build every package, once for all processes of the run; return the wheels by name."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheels"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return wheels_in(shared) if shared.exists() else build(shared)

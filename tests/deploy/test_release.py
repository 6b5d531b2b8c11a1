"""`make release` makes a release of a clean checkout, and the same bytes each time."""

import json
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests.deploy.commands import ROOT, run, version
from tests.deploy.packages import INDEXES, SOURCES

pytestmark = [pytest.mark.packages, pytest.mark.timeout(1200)]
IMAGES = ("ingest", "migrations", "operator", "simulator", "worker")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone in which a release was made."""
    made = tmp_path_factory.mktemp("release") / "clone"
    run("git", "clone", "--quiet", ROOT, made)
    run("make", "release", "IMAGES=no", f"PYTHON={sys.executable}", where=made, within=900, env=INDEXES)
    return made


def test_has_the_packages_the_bills_the_provenance_the_checksums_and_the_notes(clone: Path) -> None:
    dist = clone / "dist"
    release = version()
    assert {file.name for file in dist.iterdir()} == {
        *(f"{name}-{release}-py3-none-any.whl" for name in SOURCES),
        *(f"{name}-{release}.tar.gz" for name in SOURCES),
        *(f"surelane-{image}-{release}.cdx.json" for image in IMAGES),
        *(f"surelane-{release}.provenance.json", "SHA256SUMS", "NOTES.md"),
    }
    lines = (line.partition("  ") for line in (dist / "SHA256SUMS").read_text().splitlines())
    sums = {name: digest for digest, _, name in lines}
    assert sums == {
        file.name: sha256(file.read_bytes()).hexdigest()
        for file in dist.iterdir()
        if file.name not in ("SHA256SUMS", "NOTES.md")
    }
    stated = json.loads((dist / f"surelane-{release}.provenance.json").read_text())
    named = {subject["name"]: subject["digest"]["sha256"] for subject in stated["subject"]}
    assert named.items() < sums.items()
    (source,) = stated["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"]["gitCommit"] == run("git", "rev-parse", "HEAD", where=clone).stdout.strip()
    bill = json.loads((dist / f"surelane-worker-{release}.cdx.json").read_text())
    assert {"surelane", "surelane-service", "aiohttp"} <= {part["name"] for part in bill["components"]}
    assert (dist / "NOTES.md").read_text().strip() in (ROOT / "CHANGELOG.md").read_text()


def test_another_clone_under_another_umask_makes_the_same_bytes(clone: Path, tmp_path: Path) -> None:
    run("sh", "-c", f"umask 077; git clone --quiet {clone} {tmp_path}/again")
    again = tmp_path / "again"
    script = f"umask 077; {clone}/.venv/bin/python dev/release.py --no-images"
    run("sh", "-c", script, where=again, within=600, env={**INDEXES, "PYTHON": sys.executable})
    run("diff", "--recursive", clone / "dist", again / "dist")


def test_what_is_not_committed_is_in_no_release_and_images_need_an_engine(clone: Path) -> None:
    changed = clone / "migrations/idempotent/001-event.sql"
    held = changed.read_text()
    changed.write_text(f"{held}-- later\n")
    refused = run(clone / ".venv/bin/python", "dev/release.py", where=clone, check=False)
    changed.write_text(held)
    assert refused.returncode == 1
    assert "001-event.sql" in refused.stderr
    nowhere = {"DOCKER_HOST": "unix:///nonexistent"}
    refused = run(clone / ".venv/bin/python", "dev/release.py", where=clone, env=nowhere, check=False)
    assert refused.returncode == 1
    assert "make release IMAGES=no" in refused.stderr

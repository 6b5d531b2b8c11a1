"""``python dev/pin_images.py`` adds digests to third-party images for a release, and checks them."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.deploy.commands import ROOT, run
from tests.deploy.manifests import containers, rendered, workloads

# A stub of the registry: it prints a digest made of the image's name, as buildx does.
REGISTRY_STUB = """#!/bin/sh
test "$1 $2 $3 $5 $6" = "buildx imagetools inspect --format {{.Manifest.Digest}}" || exit 9
printf 'sha256:%s\\n' "$(printf %s "$4" | sha256sum | cut -d' ' -f1)"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy what a release has, and put a stub of ``docker`` beside it."""
    for name in run("git", "ls-files", where=ROOT).stdout.splitlines():
        if not name.startswith(("tests/", "dev/tests/", "docs/", "benchmarks/", ".")):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name, follow_symlinks=False)
    stub = tmp_path / "bin/docker"
    stub.parent.mkdir()
    stub.write_text(REGISTRY_STUB)
    stub.chmod(0o755)
    return tmp_path


def pin(tree: Path, *arguments: str) -> tuple[int, str]:
    done = run(
        *(sys.executable, "dev/pin_images.py", "--root", str(tree)),
        *arguments,
        env={"PATH": f"{tree / 'bin'}:{os.environ['PATH']}"},
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_release_has_a_digest_for_every_image_of_others(tree: Path) -> None:
    code, lacking = pin(tree, "--check")
    images = {line.rpartition(": ")[2] for line in lacking.splitlines()}
    assert code == 1
    assert {name.partition(":")[0] for name in images} == {
        *("python", "timescale/timescaledb", "otel/opentelemetry-collector"),
        *(
            "jaegertracing/jaeger",
            "prom/prometheus",
            "grafana/grafana",
            "prom/alertmanager",
            "caddy",
            "debian",
        ),
    }
    assert pin(tree) == (0, "")
    assert pin(tree, "--check") == (0, "every image has a digest\n")
    pinned = (tree / "compose.yaml").read_text()
    assert pin(tree)[0] == 0, "pinning again looks them up again"
    assert (tree / "compose.yaml").read_text() == pinned
    named = {
        file.relative_to(tree).as_posix(): found
        for file in tree.rglob("*")
        if file.is_file()
        and not file.is_symlink()
        and (
            found := re.findall(
                rb"^(?: +image:|FROM|ARG BASE=) ?([a-z]\S*:\S+)", file.read_bytes(), re.MULTILINE
            )
        )
    }
    assert "extensions/shards/router/Dockerfile" in named
    for file, images_in in named.items():
        assert all(re.search(rb":[\w.-]+@sha256:[0-9a-f]{64}$", name) for name in images_in), (
            file,
            images_in,
        )
    for workload in workloads(rendered(tree / "k8s")):
        for container in containers(workload):
            assert "@sha256:" in container["image"] or "surelane-" in container["image"], container["image"]


def test_a_registry_that_does_not_answer_is_said(tree: Path) -> None:
    (tree / "bin/docker").write_text("#!/bin/sh\necho 'no such host' >&2; exit 1\n")
    code, said = pin(tree)
    assert code == 1
    assert re.search(r"no digest of \S+: no such host", said)

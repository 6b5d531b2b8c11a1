"""The Kubernetes overlay of `surelane new`: a team's image, Secrets by name, and the manifest in the bot's image."""

from pathlib import Path

import kubernetes_validate
import pytest

from surelane_dev.new import write_project
from tests.deploy.commands import ROOT, version
from tests.deploy.manifests import (
    Manifests,
    all_containers,
    containers,
    environment,
    main_container,
    named,
    of_kind,
    pod,
    rendered,
)

SECRETS = {"migrate", "ingest", "worker", "operator"}


@pytest.fixture(scope="module", params=["", "agent", "bolt"])
def overlay(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    project = tmp_path_factory.mktemp("new") / "mybot"
    write_project(project, request.param)
    return rendered(project / "k8s")


@pytest.mark.parametrize("kubernetes", ["1.27", "1.37"])
def test_it_is_strictly_valid(overlay: Manifests, kubernetes: str) -> None:
    for manifest in overlay:
        kubernetes_validate.validate(manifest, kubernetes, strict=True)
    assert named(overlay, "Job", f"migrate-{version()}")


def test_every_image_is_the_team_s_and_every_secret_is_named(overlay: Manifests) -> None:
    images, secrets = set(), set()
    for _, container in all_containers(overlay):
        images.add(container["image"])
        given = (each.get("valueFrom", {}).get("secretKeyRef", {}) for each in container.get("env", []))
        secrets |= {each["name"] for each in given if each}
    ours = {
        f"registry.example.com/surelane-{name}:{version()}" for name in ("ingest", "operator", "migrations")
    }
    assert images == {"registry.example.com/mybot:1", *ours}
    assert secrets == SECRETS
    assert not of_kind(overlay, "Secret", "StatefulSet"), "no secret is in the repository, nor a database"


def test_ingest_and_operator_read_the_manifest_of_the_bot_s_image(overlay: Manifests) -> None:
    for name in ("ingest", "operator"):
        container = main_container(overlay, name)
        assert environment(overlay, container)["SURELANE_MANIFEST"] == "/manifest/manifest.yaml"
        deployment = named(overlay, "Deployment", name)
        copying = containers(deployment)[1]
        assert (copying["image"], copying["command"][1]) == ("registry.example.com/mybot:1", "manifest.yaml")
        assert {each["name"] for each in pod(deployment)["volumes"]} == {"manifest"}
    assert "SURELANE_HANDLERS" not in environment(overlay, main_container(overlay, "worker")), (
        "the image names them"
    )


def test_what_it_takes_is_this_repository_s(tmp_path: Path) -> None:
    write_project(tmp_path / "mybot")
    taken = tmp_path / "mybot/k8s/surelane"
    files = [file for file in taken.rglob("*") if file.is_file()]
    assert len(files) > 20
    for file in files:
        assert file.read_text() == (ROOT / "k8s" / file.relative_to(taken)).read_text(), file

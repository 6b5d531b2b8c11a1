"""Render the Kubernetes manifests as values for assertions."""

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.deploy.commands import ROOT, run, version
from tests.needs import program

Manifest = dict[str, Any]
Manifests = tuple[Manifest, ...]

DEMONSTRATION = ROOT / "k8s"
PRODUCTION = ROOT / "k8s/overlays/production"
OBSERVED = ROOT / "tests/deploy/observed"
"""The kustomization of the demonstration with the observability component."""


TEAM = ROOT / "examples/team-overlay"
"""A team's own overlay, which fetches our base from a git repository."""
REMOTE = "https://git.example.com/surelane.git"
"""Its placeholder for the address of that repository."""


@cache
def team() -> Manifests:
    """Return the manifests of a team's overlay, as its copy elsewhere renders them."""
    with TemporaryDirectory() as made:
        repository, copy = Path(made, "surelane.git"), Path(made, "team")
        shutil.copytree(ROOT / "k8s", repository / "k8s")
        git = ("git", "-C", repository, "-c", "user.name=t", "-c", "user.email=t@example.com")
        run(*git, "init", "--quiet")
        run(*git, "add", ".")
        run(*git, "commit", "--quiet", "--message=manifests")
        run(*git, "tag", f"v{version()}")
        shutil.copytree(TEAM, copy)
        for example in copy.glob("secrets/*.env.example"):
            example.rename(example.with_suffix(""))
        kustomization = copy / "kustomization.yaml"
        kustomization.write_text(kustomization.read_text().replace(REMOTE, f"file://{repository}"))
        return _rendered(copy)


@cache
def rendered(directory: Path) -> Manifests:
    """Return the manifests that ``kubectl apply -k`` would apply."""
    return team() if directory == TEAM else _rendered(directory)


def _rendered(directory: Path) -> Manifests:
    tool = program("kubectl", "kustomize")
    command = (tool, "kustomize", directory) if Path(tool).name == "kubectl" else (tool, "build", directory)
    return tuple(yaml.safe_load_all(run(*command).stdout))


def of_kind(manifests: Manifests, *kinds: str) -> list[Manifest]:
    """Return the manifests of some kinds."""
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def some(manifests: Manifests, *kinds: str) -> list[Manifest]:
    """Return the manifests of some kinds. There is one at least, so that a loop over them tests something."""
    found = of_kind(manifests, *kinds)
    assert found, f"there is no {kinds}"
    return found


def named(manifests: Manifests, kind: str, name: str) -> Manifest:
    """Return the manifest of a kind and name."""
    (found,) = (found for found in of_kind(manifests, kind) if found["metadata"]["name"] == name)
    return found


def workloads(manifests: Manifests) -> list[Manifest]:
    """Return the manifests that create pods."""
    return some(manifests, "Deployment", "StatefulSet", "Job")


def pod(workload: Manifest) -> Manifest:
    """Return the specification of a workload's pods."""
    spec: Manifest = workload["spec"]["template"]["spec"]
    return spec


def labels(workload: Manifest) -> dict[str, str]:
    """Return the labels of a workload's pods."""
    found: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return found


def containers(workload: Manifest) -> list[Manifest]:
    """Return a workload's init containers and containers."""
    return [*pod(workload).get("initContainers", []), *pod(workload)["containers"]]


def all_containers(manifests: Manifests) -> Iterator[tuple[Manifest, Manifest]]:
    """Return each workload with each of its containers."""
    for workload in workloads(manifests):
        for container in containers(workload):
            yield workload, container


def main_container(manifests: Manifests, deployment: str) -> Manifest:
    """Return the only container of a deployment that is no init container."""
    (found,) = pod(named(manifests, "Deployment", deployment))["containers"]
    container: Manifest = found
    return container


def environment(manifests: Manifests, container: Manifest) -> dict[str, str | None]:
    """Return a container's variables, with the values that the manifests have."""
    found: dict[str, str | None] = {}
    for source in container.get("envFrom", []):
        found.update(_data(manifests, source))
    for variable in container.get("env", []):
        found[variable["name"]] = variable.get("value")
    return found


def _data(manifests: Manifests, source: Manifest) -> dict[str, str]:
    kind, reference = (
        ("ConfigMap", source["configMapRef"]) if "configMapRef" in source else ("Secret", source["secretRef"])
    )
    data: dict[str, str] = named(manifests, kind, reference["name"])["data"]
    return data


def probes(container: Manifest) -> Iterator[tuple[str, Manifest]]:
    """Return a container's probes by name."""
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        if name in container:
            yield name, container[name]

"""Every file of ours that starts a container gives it no more than it needs: the walk finds new files by itself."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.commands import ROOT, run
from tests.deploy.manifests import containers, of_kind, pod

FILES = [
    ROOT / name
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", where=ROOT).stdout.split(
        "\n"
    )
    if re.search(r"\.yaml(\.\w+)?$", name) and not name.startswith(("tests/", "dev/tests/", "."))
]
"""Also the templates of ``surelane new``. What tests start is theirs."""
METADATA = "169.254.0.0/16"
"""Where clouds hand out credentials."""


class _Loader(yaml.SafeLoader):
    """Reads Compose's own tags, such as ``!override``, as the values behind them."""


def _untagged(loader: _Loader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return None


_Loader.add_multi_constructor("!", _untagged)


def documents(file: Path) -> Iterator[dict[str, Any]]:
    text = re.sub(r"^\$\{\w+\}", "", file.read_text(), flags=re.MULTILINE)  # what `surelane new` fills in
    try:
        found = list(yaml.load_all(text, _Loader))
    except yaml.YAMLError:
        found = []  # a list of examples for documentation
    yield from (each for each in found if isinstance(each, dict))


def services() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in FILES:
        for read in documents(file):
            for name, service in (read.get("services") or {}).items():
                yield f"{file.relative_to(ROOT)} {name}", service or {}


SERVICES = dict(services())
OF_THEIR_OWN = {
    name: each for name, each in SERVICES.items() if {"image", "build", "entrypoint"} & each.keys()
}
CHANGED = {"compose.override.yaml worker"}
"""Services that another file begins."""


@pytest.mark.parametrize("name", [name for name in OF_THEIR_OWN if name not in CHANGED])
def test_every_service_of_compose_is_hardened_and_bounded(name: str) -> None:
    service = OF_THEIR_OWN[name]
    assert service.get("read_only") is True or name.endswith(" settings"), (
        "it gets copies of secrets, and ends"
    )
    assert service.get("cap_drop") == ["ALL"]
    assert set(service.get("cap_add", [])) <= {"NET_BIND_SERVICE"}
    assert service.get("security_opt") == ["no-new-privileges:true"]
    limits = service.get("deploy", {}).get("resources", {}).get("limits", {})
    assert limits.get("memory"), "memory"
    assert 0 < limits.get("pids", 0) <= 1024, "processes"


def test_no_service_of_compose_reaches_the_host() -> None:
    assert {
        "compose.yaml worker",
        "compose/ha.yaml etcd",
        "extensions/shards/router/compose.yaml router",
    } <= set(SERVICES)
    for name, service in SERVICES.items():
        assert not {"privileged", "pid", "ipc", "userns_mode", "devices", "cgroup"} & service.keys(), name
        assert service.get("network_mode") in (None, "none", "service:db"), name
        assert "docker.sock" not in str(service.get("volumes")), name


def manifests(*kinds: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in FILES:
        for found in of_kind(tuple(each for each in documents(file) if "kind" in each), *kinds):
            yield f"{file.relative_to(ROOT)} {found.get('metadata', {}).get('name')}", found


WORKLOADS = dict(manifests("Deployment", "StatefulSet", "DaemonSet", "Job"))


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_hardened_and_bounded(name: str) -> None:
    workload = WORKLOADS[name]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod(workload).keys()
    security = pod(workload)["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(workload)["automountServiceAccountToken"] is False
    for container in containers(workload):
        assert container["resources"]["limits"]["memory"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, container["name"]


def test_no_network_policy_opens_the_metadata_service_or_everything() -> None:
    """A port without addresses is open to all of them. DNS alone may be: nodes have their caches at such addresses."""
    policies = dict(manifests("NetworkPolicy"))
    assert len(policies) >= 10 <= len(WORKLOADS)
    for name, policy in policies.items():
        for rule in policy["spec"].get("egress", []):
            ports = {port["port"] for port in rule.get("ports", [])}
            assert ports, name
            assert rule.get("to") or ports == {53}, f"{name}: {ports} of every address"
            for block in (each["ipBlock"] for each in rule.get("to", []) if "ipBlock" in each):
                assert METADATA in block["except"] or ":" in block["cidr"], name

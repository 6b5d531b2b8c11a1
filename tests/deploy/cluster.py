"""Use a Kubernetes cluster through kubectl, with our manifests in a namespace of their own."""

import asyncio
import json
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.deploy.commands import REGISTRY, run, version
from tests.deploy.manifests import DEMONSTRATION
from tests.needs import lacking, program
from tests.processes import free_port
from tests.scenario import System

OLDER = {"policy/v1": "policy/v1beta1", "autoscaling/v2": "autoscaling/v2beta2"}
"""API versions that clusters before 1.21 and 1.23 have under an earlier name."""


class Forward:
    """A ``kubectl port-forward`` to a service. It leads to one pod, and ends with it."""

    def __init__(self, namespace: str, service: str, port: int) -> None:
        self._port = free_port()
        self._process = subprocess.Popen(
            ["kubectl", "-n", namespace, "port-forward", f"service/{service}", f"{self._port}:{port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @classmethod
    def to(cls, namespace: str, service: str, port: int, within: float = 90) -> Self:
        """Open a forward. Try again if kubectl picks a pod that ends.

        Raises:
            AssertionError: none could be opened within ``within`` seconds.
        """
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            forward = cls(namespace, service, port)
            if forward._opens(deadline):
                return forward
            forward.close()
            time.sleep(0.5)
        raise AssertionError(f"no pod of service {service} could be reached within {within} s")

    @property
    def url(self) -> str:
        """The URL of its end on this machine."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def alive(self) -> bool:
        """Whether it still forwards."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(timeout=10)

    def _opens(self, deadline: float) -> bool:
        """Return whether the forward opens. kubectl listens once it has reached the pod, and ends if it cannot."""
        while self.alive and time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return True
            time.sleep(0.1)
        return False


@dataclass
class Cluster:
    """Our system in a namespace of a cluster."""

    namespace: str
    database: str = "timescaledb-0"
    """The pod of PostgreSQL."""
    forwards: dict[str, Forward] = field(default_factory=dict)

    def kubectl(self, *arguments: str, within: float = 60, check: bool = True) -> str:
        """Run kubectl in the namespace; return its output."""
        return run("kubectl", "-n", self.namespace, *arguments, within=within, check=check).stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        """Read objects."""
        read: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return read

    def pods(self, name: str) -> list[str]:
        """Return the names of a workload's pods, without those that end."""
        found = self.get("pods", "-l", f"app.kubernetes.io/name={name}")["items"]
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def rolled_out(self, *workloads: str, within: int = 240) -> None:
        """Wait until the workloads are rolled out."""
        for workload in workloads:
            self.kubectl("rollout", "status", workload, f"--timeout={within}s", within=within + 10)

    def query(self, sql: str) -> str:
        """Run a query on the system's database."""
        psql = ("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", "surelane", "-c", sql)
        return self.kubectl("exec", self.database, "--", *psql, within=60).strip()

    async def _query(self, sql: str) -> str:
        return await asyncio.to_thread(self.query, sql)

    def url(self, service: str, port: int) -> str:
        """Return the URL of a service from here. Make a lost forward again."""
        forward = self.forwards.get(service)
        if forward is None or not forward.alive:
            forward = self.forwards[service] = Forward.to(self.namespace, service, port)
        return forward.url

    @property
    def system(self) -> System:
        """The running system for the scenarios."""
        return System(self.url("ingest", 80), self.url("simulator", 8090) + "/api/", self._query)


@contextmanager
def installed(directory: Path) -> Iterator[Cluster]:
    """Apply ``k8s/`` to kubectl's cluster in a new namespace, by a copy in an empty directory. Remove it at the end."""
    with namespaced() as cluster:
        apply(cluster, directory)
        yield cluster


@contextmanager
def namespaced(database: str = Cluster.database) -> Iterator[Cluster]:
    """Use a namespace of kubectl's cluster. Remove it with all that it has."""
    program("kubectl")
    if run("kubectl", "get", "--raw", "/readyz", "--request-timeout=5s", check=False).returncode != 0:
        lacking("no Kubernetes cluster answers kubectl")
    cluster = Cluster(f"surelane-test-{secrets.token_hex(4)}", database)
    try:
        yield cluster
    except BaseException:
        print(cluster.kubectl("get", "all", "-o", "wide", check=False))  # noqa: T201 - pytest shows it
        print(cluster.kubectl("get", "events", check=False))  # noqa: T201
        raise
    finally:
        for forward in cluster.forwards.values():
            forward.close()
        _remove(cluster)


def _remove(cluster: Cluster) -> None:
    """Remove everything, the pods first. Kubernetes looks at a namespace with pods only after their grace period."""
    cluster.kubectl("delete", "deployments,statefulsets,jobs,pods", "--all", "--wait=false", check=False)
    cluster.kubectl("wait", "--for=delete", "pod", "--all", "--timeout=90s", within=100, check=False)
    cluster.kubectl("delete", "namespace", cluster.namespace, "--timeout=60s", within=70, check=False)


def apply(cluster: Cluster, directory: Path, *, tag: str | None = None) -> None:
    """Apply a copy of ``k8s/`` with the cluster's namespace and, if given, another version of the images.

    Leave the simulator unchanged, because it keeps the threads that the scenarios read in memory.
    """
    copy = directory / "k8s"
    shutil.copytree(DEMONSTRATION, copy, dirs_exist_ok=True)
    root = copy / "kustomization.yaml"
    changed = root.read_text().replace("namespace: surelane", f"namespace: {cluster.namespace}")
    for image in ("ingest", "worker", "operator", "migrations", "simulator"):
        entry, name = f"name: surelane-{image}, newTag: ", f"{REGISTRY}surelane-{image}"
        newer = tag if tag and image != "simulator" else version()
        changed = changed.replace(
            entry + version(), f"name: surelane-{image}, newName: {name}, newTag: {newer}"
        )
    root.write_text(changed)
    apply_overlay(copy)


def apply_overlay(overlay: Path) -> None:
    """Run ``kubectl apply -k``, with the API versions that the cluster has."""
    manifests = run("kubectl", "kustomize", overlay).stdout
    known = run("kubectl", "api-versions").stdout.split()
    lacks = [newer for newer in OLDER if newer not in known]
    for newer in lacks:
        manifests = re.sub(f"(?m)^apiVersion: {newer}$", f"apiVersion: {OLDER[newer]}", manifests)
    rendered = overlay / "rendered.yaml"
    rendered.write_text(manifests)
    validate = "--validate=false" if lacks else "--validate=true"  # such a cluster does not know every field
    run("kubectl", "apply", validate, "-f", rendered)

"""The Kubernetes overlay of `surelane new`: a team's image, Secrets by name, and the manifest in the bot's image."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import pytest

from surelane_dev.new import write_project
from surelane_service.service_settings import DEMO_BOT_TOKEN, DEMO_SIGNING_SECRET
from tests.databases import IMAGE
from tests.deploy.cluster import Cluster, apply_overlay, namespaced
from tests.deploy.commands import REGISTRY, ROOT, run, version
from tests.deploy.manifests import (
    Manifests,
    all_containers,
    named,
    of_kind,
    rendered,
)
from tests.scenario import answered_once

SECRETS = {
    "migrate": (),
    "ingest": (f"SLACK_SIGNING_SECRET={DEMO_SIGNING_SECRET}",),
    "worker": (f"SLACK_BOT_TOKEN={DEMO_BOT_TOKEN}",),
    "operator": ("SURELANE_API_TOKEN=a-token-of-sixteen-or-more",),
}
"""What each has beside the database's URL."""


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
    assert secrets == SECRETS.keys()
    assert not of_kind(overlay, "Secret", "StatefulSet"), "no secret is in the repository, nor a database"


def test_what_it_takes_is_this_repository_s(tmp_path: Path) -> None:
    write_project(tmp_path / "mybot")
    taken = tmp_path / "mybot/k8s/surelane"
    files = [file for file in taken.rglob("*") if file.is_file()]
    assert len(files) > 20
    for file in files:
        assert file.read_text() == (ROOT / "k8s" / file.relative_to(taken)).read_text(), file


@pytest.fixture
def team(images: dict[str, str], tmp_path: Path) -> Iterator[Cluster]:
    """Do in a cluster as the page says: accounts in an empty database, Secrets, images, the overlay."""
    project, secret = tmp_path / "mybot", "a-password"
    write_project(project)
    built = ("-t", f"{REGISTRY}mybot:1", f"--build-arg=REGISTRY={REGISTRY}")
    run("docker", "build", *built, project, within=300)
    with namespaced(database="db") as cluster:
        cluster.kubectl("create", "namespace", cluster.namespace)
        of = ("POSTGRES", *(f"SURELANE_{each}" for each in ("OWNER", "INGEST", "WORKER", "OPERATOR")))
        start(
            cluster, "db", IMAGE, 5432, "POSTGRES_DB=surelane", *(f"{each}_PASSWORD={secret}" for each in of)
        )
        of_slack = ("SURELANE_SIMULATOR_URL=http://simulator:8090", "SURELANE_SIMULATOR_POSTING=off")
        start(cluster, "simulator", images["simulator"], 8090, *of_slack)
        up = "until pg_isready --quiet --host=127.0.0.1; do sleep 0.2; done"  # not yet while it initializes
        cluster.kubectl("exec", "db", "--", "sh", "-c", up, within=120)
        psql = f"kubectl -n {cluster.namespace} exec -i db -- psql -v ON_ERROR_STOP=1 -U postgres -d surelane"
        run("sh", "-c", f"{psql} <{project}/accounts.sql")
        for name, more in SECRETS.items():
            login = "surelane" if name == "migrate" else f"surelane_{name}"
            given = (f"DATABASE_URL=postgresql://{login}:{secret}@db/surelane?sslmode=disable", *more)
            literals = [f"--from-literal={each}" for each in given]
            cluster.kubectl("create", "secret", "generic", name, *literals)
        overlay = project / "k8s/kustomization.yaml"
        text = overlay.read_text().replace("registry.example.com/", REGISTRY)
        text = text.replace("namespace: surelane", f"namespace: {cluster.namespace}")
        api = "SLACK_API_URL=http://simulator:8090/api/"
        overlay.write_text(text.replace("    literals:\n", f"    literals:\n      - {api}\n"))
        apply_overlay(overlay.parent)
        yield cluster
        # PostgreSQL waits for its clients, 30 seconds at most.
        cluster.kubectl("delete", "pods", "db", "simulator", "--now", within=120)
    run("docker", "image", "rm", f"{REGISTRY}mybot:1", check=False)


def start(cluster: Cluster, name: str, image: str, port: int, *env: str) -> None:
    """Run a pod with a Service of its name."""
    given = [f"--env={each}" for each in env]
    held = ("--image-pull-policy=IfNotPresent", f"--port={port}", "--expose")
    cluster.kubectl("run", name, f"--image={image}", *held, *given)
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s", within=130)


@pytest.mark.cluster
@pytest.mark.timeout(600)
async def test_a_new_project_answers_on_a_cluster(team: Cluster) -> None:
    """Its ingest reads the manifest in the bot's image, which is the one place of event types."""
    services = (f"deployment/{name}" for name in ("ingest", "worker", "operator"))
    await asyncio.to_thread(team.rolled_out, *services)
    assert team.get("job", f"migrate-{version()}")["status"]["succeeded"] == 1
    await answered_once(team.system)

"""A team's overlay takes our base from a git repository, and changes what is its own."""

import re

from tests.deploy.commands import version
from tests.deploy.manifests import REMOTE, TEAM, all_containers, environment, named, of_kind, pod, rendered


def test_it_names_our_repository_and_this_version() -> None:
    """And no path of ours: it is a directory that a team copies."""
    addresses = re.findall(r"^  - (\S*k8s/\S+)$", (TEAM / "kustomization.yaml").read_text(), re.MULTILINE)
    assert len(addresses) == 4
    for address in addresses:
        assert address.startswith(f"{REMOTE}//k8s/")
        assert address.endswith(f"?ref=v{version()}")


def test_the_workers_run_the_teams_image_with_its_handlers_and_replicas() -> None:
    worker = named(rendered(TEAM), "Deployment", "worker")
    (container,) = pod(worker)["containers"]
    assert container["image"] == "registry.example.com/team/team-worker:7"
    assert worker["spec"]["replicas"] == 4
    given = environment(rendered(TEAM), container)
    assert given["SURELANE_HANDLERS"] == "team_bot:handlers"
    assert given["SURELANE_HISTORY_RETENTION"] == "30d"
    assert named(rendered(TEAM), "Job", f"migrate-{version()}")


def test_every_secret_that_a_pod_reads_has_a_place() -> None:
    manifests = rendered(TEAM)
    secrets = {secret["metadata"]["name"]: secret for secret in of_kind(manifests, "Secret")}
    read = set()
    for _, container in all_containers(manifests):
        for variable in container.get("env", []):
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference is not None:
                # What a team may leave out stands there as a comment.
                example = (TEAM / f"secrets/{reference['name'].partition('-')[0]}.env.example").read_text()
                given = reference["key"] in secrets[reference["name"]]["data"]
                assert given or f"\n#{reference['key']}=" in example, variable["name"]
                read.add(variable["name"])
    assert {
        *("SLACK_SIGNING_SECRET", "SLACK_BOT_TOKEN", "SURELANE_TRIGGER_SECRETS", "SURELANE_DISPATCH_SECRETS"),
        *("SURELANE_MODEL_KEY", "SURELANE_API_TOKEN", "TEAM_DEPLOY_TOKEN"),
    } <= read


def test_a_changed_secret_rolls_the_pods_but_not_the_job() -> None:
    names = {secret["metadata"]["name"] for secret in of_kind(rendered(TEAM), "Secret")}
    assert "migrate" in names
    assert not {"ingest", "worker", "operator"} & names, "a hash follows each of these"

"""The rendered manifests, a team's own overlay among them, keep their promises, beside being valid."""

import base64
import re
import shutil
from pathlib import Path

import kubernetes_validate
import pytest

from surelane_encryption.keys import Keyring
from surelane_service.common.durations import parse_duration
from surelane_service.service_settings import DEMO_CLIENT_ID, DEMO_CLIENT_SECRET, DEMO_SIGNING_SECRET
from tests.deploy.commands import ROOT, version
from tests.deploy.manifests import (
    DEMONSTRATION,
    OBSERVED,
    PRODUCTION,
    REMOTE,
    TEAM,
    Manifest,
    Manifests,
    all_containers,
    containers,
    environment,
    labels,
    main_container,
    named,
    of_kind,
    pod,
    probes,
    rendered,
    some,
    workloads,
)
from tests.deploy.settings import SECRET, default_ports, is_read

POD_LABEL = "app.kubernetes.io/name"
OURS = "surelane-"
TAGS = {
    "grafana/grafana": "12.1.1",
    "jaegertracing/jaeger": "2.11.0",
    "otel/opentelemetry-collector": "0.131.1",
    "prom/prometheus": "v3.5.0",
    "timescale/timescaledb": "2.19.3-pg17",
}
"""The tags of third-party images."""


@pytest.fixture(params=[OBSERVED, PRODUCTION], ids=["demonstration", "production"])
def manifests(request: pytest.FixtureRequest) -> Manifests:
    directory: Path = request.param
    return rendered(directory)


def image_of(container: Manifest) -> str | None:
    """Return which of our images a container runs, such as ``ingest``; ``None``: another one."""
    name = str(container["image"]).rpartition("/")[2].partition(":")[0]
    return name.removeprefix(OURS) if name.startswith(OURS) else None


def secrets_of(container: Manifest) -> dict[str, Manifest]:
    """Return the Secrets and keys of a container's variables."""
    return {
        variable["name"]: variable["valueFrom"]["secretKeyRef"]
        for variable in container.get("env", [])
        if "secretKeyRef" in variable.get("valueFrom", {})
    }


SERVICES = ("ingest", "worker", "operator")


def test_every_pod_has_a_user_and_an_account_of_its_own_without_a_token(manifests: Manifests) -> None:
    accounts = [pod(workload)["serviceAccountName"] for workload in workloads(manifests)]
    assert len(set(accounts)) == len(accounts)
    for account in accounts:
        assert named(manifests, "ServiceAccount", account)["automountServiceAccountToken"] is False
    for workload in workloads(manifests):
        assert pod(workload)["securityContext"]["runAsUser"] > 0
        assert pod(workload)["enableServiceLinks"] is False


def test_every_container_is_bounded_and_of_this_version(manifests: Manifests) -> None:
    for _, container in all_containers(manifests):
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert set(container["resources"]["limits"]) == {"memory"}, "a CPU limit only slows it down"
        assert container["imagePullPolicy"] == "IfNotPresent"
        name, _, tag = container["image"].partition("@")[0].rpartition(":")  # a release adds digests
        assert tag == (version() if image_of(container) else TAGS[name]), container["image"]


def test_the_jobs_name_carries_the_images_tag_and_it_can_be_applied_again(manifests: Manifests) -> None:
    (job,) = of_kind(manifests, "Job")
    assert job["metadata"]["name"] == f"migrate-{version()}"
    assert job["spec"]["ttlSecondsAfterFinished"] > 0
    annotations = job["metadata"]["annotations"]
    assert annotations["argocd.argoproj.io/hook-delete-policy"] == "BeforeHookCreation"
    assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation"
    # A Job's template cannot change, so no name in it may carry a hash of the content.
    (container,) = containers(of_kind(rendered(DEMONSTRATION), "Job")[0])
    assert named(rendered(DEMONSTRATION), "Secret", "migrate")
    for variable in container["env"]:
        assert "value" in variable or variable["valueFrom"]["secretKeyRef"]["name"] == "migrate"


def test_selectors_select_the_pods_they_are_meant_for(manifests: Manifests) -> None:
    pods = {workload["metadata"]["name"]: labels(workload) for workload in workloads(manifests)}
    for workload in some(manifests, "Deployment", "StatefulSet"):
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels(workload).items()
    ports = {
        workload["metadata"]["name"]: {port["name"] for port in container.get("ports", [])}
        for workload, container in all_containers(manifests)
    }
    for service in some(manifests, "Service"):
        workload = service["metadata"]["name"].removesuffix("-private")
        assert service["spec"]["selector"].items() <= pods[workload].items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports[workload]
    for budget in some(manifests, "PodDisruptionBudget"):
        selector = budget["spec"]["selector"]["matchLabels"]
        assert selector.items() <= pods[budget["metadata"]["name"]].items()
        assert budget["spec"]["maxUnavailable"] == 1
    for name in SERVICES:
        assert named(manifests, "PodDisruptionBudget", name)
        (spread,) = pod(named(manifests, "Deployment", name))["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"].items() <= pods[name].items()


def test_ports_are_the_codes_one_is_public_and_services_have_three_probes(manifests: Manifests) -> None:
    public, private = default_ports()
    for name in SERVICES:
        container = main_container(manifests, name)
        ports = {"private": private, **({"public": public} if name == "ingest" else {})}
        assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
        for _, probe in probes(container):
            assert probe["httpGet"]["port"] == "private"
            assert probe["httpGet"]["path"] in {"/livez", "/readyz"}
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez", "a database outage restarts no pod"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    for deployment in some(manifests, "Deployment"):
        for container in pod(deployment)["containers"]:
            assert len(list(probes(container))) == 3, container["name"]
    (port,) = named(manifests, "Service", "ingest")["spec"]["ports"]
    assert port["targetPort"] == "public"
    for name in ("ingest-private", "operator-private", "worker"):
        service = named(manifests, "Service", name)["spec"]
        assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)


def test_every_variable_is_read_by_the_code(manifests: Manifests) -> None:
    for _, container in all_containers(manifests):
        image = image_of(container)
        if image in {*SERVICES, "migrations"}:
            given = environment(manifests, container)
            assert given
            for variable in given:
                assert is_read(image, variable), f"{image} does not read {variable}"


def test_every_secret_that_is_demanded_is_there_with_its_key_and_marked_as_the_demonstrations() -> None:
    manifests = rendered(DEMONSTRATION)
    found = [each for _, container in all_containers(manifests) for each in secrets_of(container).values()]
    demanded = [reference for reference in found if not reference.get("optional")]
    assert demanded
    for reference in demanded:
        assert reference["key"] in named(manifests, "Secret", reference["name"])["data"]
    secrets = of_kind(manifests, "Secret")
    assert secrets
    assert all(secret["metadata"]["labels"]["surelane.dev/demo"] == "true" for secret in secrets)
    signing = named(manifests, "Secret", "ingest")["data"]["SLACK_SIGNING_SECRET"]
    assert base64.b64decode(signing).decode() == DEMO_SIGNING_SECRET


def test_every_secret_setting_can_come_from_a_secret(manifests: Manifests) -> None:
    for name in SERVICES:
        container = main_container(manifests, name)
        references = secrets_of(container)
        assert set(references) == SECRET[name]
        assert all(variable == reference["key"] for variable, reference in references.items())
        optional = {variable for variable, reference in references.items() if reference.get("optional")}
        ours = {"API_VIEWER_TOKEN", "CONSOLE_KEY", "CONSOLE_OIDC_CLIENT_SECRET", "DISPATCH_SECRETS"}
        ours |= {"ENCRYPTION_KEYS", "MODEL_KEY", "SHARDS", "TRIGGER_SECRETS"}
        slacks = ("APP_TOKEN", "BOT_TOKEN", "CLIENT_SECRET", "SIGNING_SECRET")
        may_lack = {f"SURELANE_{each}" for each in ours} | {f"SLACK_{each}" for each in slacks}
        assert optional == set(references) & may_lack


def test_services_wait_for_the_schema_and_are_given_longer_than_they_drain(manifests: Manifests) -> None:
    for name in SERVICES:
        spec, container = pod(named(manifests, "Deployment", name)), main_container(manifests, name)
        (waiting,) = spec["initContainers"]
        assert (image_of(waiting), waiting["args"]) == ("migrations", ["wait"])
        drain = parse_duration(environment(manifests, container).get("SURELANE_DRAIN_TIMEOUT") or "30s")
        beyond = {"ingest": 5, "worker": 10}.get(name)  # ingest first pauses
        if beyond is not None:
            assert spec["terminationGracePeriodSeconds"] > drain.total_seconds() + beyond
    command = main_container(manifests, "ingest")["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["python", "-c", "import time; time.sleep(5)"], "the image needs no shell"


def test_what_is_scaled_has_no_replicas_of_its_own() -> None:
    for manifests in map(rendered, (DEMONSTRATION, PRODUCTION)):
        assert "replicas" not in named(manifests, "Deployment", "ingest")["spec"]
        assert named(manifests, "HorizontalPodAutoscaler", "ingest")["spec"]["minReplicas"] >= 2
    assert "replicas" not in named(rendered(PRODUCTION), "Deployment", "worker")["spec"]
    assert named(rendered(PRODUCTION), "ScaledObject", "worker")["spec"]["scaleTargetRef"]["name"] == "worker"
    assert named(rendered(DEMONSTRATION), "Deployment", "worker")["spec"]["replicas"] == 2


def test_traffic_is_denied_unless_named_and_only_slack_and_webhooks_are_let_in(manifests: Manifests) -> None:
    policies = of_kind(manifests, "NetworkPolicy")
    everything = named(manifests, "NetworkPolicy", "deny-all")["spec"]
    assert everything == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    selected = {policy["spec"]["podSelector"].get("matchLabels", {}).get(POD_LABEL) for policy in policies}
    assert {labels(workload)[POD_LABEL] for workload in workloads(manifests)} <= selected
    (ingress,) = of_kind(rendered(PRODUCTION), "Ingress")
    (rule,) = ingress["spec"]["rules"]
    assert {path["path"] for path in rule["http"]["paths"]} == {"/slack", "/v1/triggers", "/v1/dispatch"}
    assert ingress["spec"]["tls"][0]["hosts"] == [rule["host"]]


def test_the_database_runs_as_the_images_own_user_and_the_demonstrations_worker_its_handlers() -> None:
    database = named(rendered(DEMONSTRATION), "StatefulSet", "timescaledb")
    security = pod(database)["securityContext"]
    assert (security["runAsUser"], security["fsGroup"]) == (70, 70)
    (container,) = containers(database)
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    data = environment(rendered(DEMONSTRATION), container)["PGDATA"]
    assert data is not None
    assert data.startswith(mounts["data"] + "/")
    worker = named(rendered(DEMONSTRATION), "Deployment", "worker")
    (volume,) = pod(worker)["volumes"]
    mounted = named(rendered(DEMONSTRATION), "ConfigMap", volume["configMap"]["name"])["data"]
    assert mounted == {"demonstration.py": (ROOT / "dev/src/surelane_dev/demonstration.py").read_text()}
    assert "${SURELANE_HANDLERS:-demonstration:handlers}" in containers(worker)[-1]["command"][-1]


def test_production_brings_no_secret_or_database_and_images_of_others_are_those_of_compose() -> None:
    manifests = rendered(PRODUCTION)
    assert not of_kind(manifests, "Secret", "StatefulSet")
    assert {workload["metadata"]["name"] for workload in some(manifests, "Deployment")} == set(SERVICES)
    for _, container in all_containers(manifests):
        assert "SLACK_API_URL" not in environment(manifests, container), "Slack's own is the default"
    compose = (ROOT / "compose.yaml").read_text()
    for name, tag in TAGS.items():
        assert f"    image: {name}:{tag}" in compose


def test_the_demonstration_takes_installs_by_one_line(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "k8s", tmp_path / "k8s")
    kustomization = tmp_path / "k8s/kustomization.yaml"
    kustomization.write_text(kustomization.read_text().replace("  # - components/", "  - components/"))
    manifests = rendered(tmp_path / "k8s")
    found = {
        name: environment(manifests, containers(named(manifests, "Deployment", name))[-1])
        for name in ("ingest", "worker", "simulator")
    }
    assert {each["SLACK_CLIENT_ID"] for each in found.values()} == {DEMO_CLIENT_ID}
    for name in ("ingest", "worker"):
        secret = named(manifests, "Secret", name)["data"]
        assert base64.b64decode(secret["SLACK_CLIENT_SECRET"]).decode() == DEMO_CLIENT_SECRET
        assert Keyring.read(base64.b64decode(secret["SURELANE_ENCRYPTION_KEYS"]).decode())
        assert "DATABASE_URL" in secret, "the others stay"


@pytest.mark.parametrize("version", ["1.27", "1.37"])
@pytest.mark.parametrize("directory", [OBSERVED, PRODUCTION, TEAM], ids=["observed", "production", "team"])
def test_they_are_strictly_valid_for_the_oldest_and_newest_kubernetes(version: str, directory: Path) -> None:
    """A version between two others refuses nothing that both accept: fields are added, and removed for good."""
    for manifest in rendered(directory):
        if manifest["kind"] not in {"ScaledObject", "TriggerAuthentication"}:  # of other operators
            kubernetes_validate.validate(manifest, version, strict=True)


def test_a_teams_overlay_names_our_repository_and_its_workers_run_its_image_with_its_handlers() -> None:
    """And no path of ours: it is a directory that a team copies."""
    addresses = re.findall(r"^  - (\S*k8s/\S+)$", (TEAM / "kustomization.yaml").read_text(), re.MULTILINE)
    assert len(addresses) == 4
    for address in addresses:
        assert address.startswith(f"{REMOTE}//k8s/")
        assert address.endswith(f"?ref=v{version()}")
    worker = named(rendered(TEAM), "Deployment", "worker")
    (container,) = pod(worker)["containers"]
    assert container["image"] == "registry.example.com/team/team-worker:7"
    assert worker["spec"]["replicas"] == 4
    given = environment(rendered(TEAM), container)
    assert given["SURELANE_HANDLERS"] == "team_bot:handlers"
    assert given["SURELANE_HISTORY_RETENTION"] == "30d"
    assert named(rendered(TEAM), "Job", f"migrate-{version()}")


def test_every_secret_of_a_teams_pod_has_a_place_and_a_changed_one_rolls_the_pods_but_not_the_job() -> None:
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
    names = secrets.keys()
    assert "migrate" in names
    assert not {"ingest", "worker", "operator"} & names, "a hash follows each of these"

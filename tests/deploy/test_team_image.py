"""A team's image derived from the worker's, as documented, finds the team's handlers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.commands import REGISTRY, ROOT, run, version
from tests.deploy.compose import DEMONSTRATION, project

pytestmark = [pytest.mark.container, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def team_image(images: dict[str, str]) -> Iterator[str]:
    """Build the example team's image on the worker's."""
    name = f"{REGISTRY}team-worker:{version()}"
    assert images["worker"] == f"{REGISTRY}surelane-worker:{version()}"
    given = (f"--build-arg=VERSION={version()}", f"--build-arg=REGISTRY={REGISTRY}")
    run("docker", "build", "--quiet", *given, "-t", name, ROOT / "examples/team")
    yield name
    run("docker", "image", "rm", name, check=False)


def test_under_compose_a_teams_image_runs_the_teams_handlers(team_image: str, tmp_path: Path) -> None:
    """As in docs/deploy-compose.md, a file of the team names the image."""
    (tmp_path / "team.yaml").write_text(
        f"services: {{worker: {{image: '{team_image}', build: !reset null}}}}\n"
    )
    with project(*DEMONSTRATION, str(tmp_path / "team.yaml")) as running:
        running.compose("up", "--detach", "--wait", "--wait-timeout=180", "worker", within=300)
        kinds = running.query("select unnest(kinds) from agent.worker").split()
    assert {"reminder", "slack.app_mention", "slack.command.status"} <= set(kinds), kinds

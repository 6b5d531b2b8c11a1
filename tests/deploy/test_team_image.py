"""A team's image derived from the worker's, as documented, finds the team's handlers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.commands import REGISTRY, ROOT, run, version
from tests.deploy.compose import DEMONSTRATION, project

pytestmark = [pytest.mark.container, pytest.mark.timeout(600)]

LOADED = """
import os
from surelane_worker.wiring import load_handlers
from surelane_worker.handling.registry import registered_in
found = registered_in(load_handlers(os.environ["SURELANE_HANDLERS"])).all()
print(*sorted(kind for handler in found for kind in handler.kinds))
"""


@pytest.fixture(scope="module")
def team_image(images: dict[str, str]) -> Iterator[str]:
    """Build the example team's image on the worker's."""
    name = f"{REGISTRY}team-worker:{version()}"
    assert images["worker"] == f"{REGISTRY}surelane-worker:{version()}"
    given = (f"--build-arg=VERSION={version()}", f"--build-arg=REGISTRY={REGISTRY}")
    run("docker", "build", "--quiet", *given, "-t", name, ROOT / "examples/team")
    yield name
    run("docker", "image", "rm", name, check=False)


def test_a_teams_image_runs_the_teams_handlers_without_privileges(team_image: str) -> None:
    sandbox = ("--read-only", "--user=65532", "--cap-drop=ALL", "--network=none")
    loaded = run("docker", "run", "--rm", *sandbox, "--entrypoint=python", team_image, "-c", LOADED).stdout

    assert "slack.app_mention" in loaded.split()


def test_under_compose_a_teams_image_runs_the_teams_handlers(team_image: str, tmp_path: Path) -> None:
    """As in docs/deploy-compose.md, a file of the team names the image."""
    (tmp_path / "team.yaml").write_text(
        f"services: {{worker: {{image: '{team_image}', build: !reset null}}}}\n"
    )
    with project(*DEMONSTRATION, str(tmp_path / "team.yaml")) as running:
        running.compose("up", "--detach", "--wait", "--wait-timeout=180", "worker", within=300)
        kinds = running.query("select unnest(kinds) from agent.worker").split()
    assert {"reminder", "slack.command.status"} <= set(kinds), kinds


def test_a_teams_image_says_in_one_line_what_it_lacks(team_image: str) -> None:
    ended = run("docker", "run", "--rm", "--network=none", team_image, check=False)

    assert ended.returncode == 2
    assert "DATABASE_URL is not set" in ended.stdout + ended.stderr

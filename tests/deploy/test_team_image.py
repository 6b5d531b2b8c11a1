"""A team's own image, derived from the worker's, as the README says: it holds the team's handlers and finds them."""

from collections.abc import Iterator

import pytest

from tests.deploy.commands import ROOT, run, version

pytestmark = [pytest.mark.container, pytest.mark.timeout(600)]

LOADED = """
import os
from surelane_worker.handlers.load import load_handlers
print(*sorted(kind for handler in load_handlers(os.environ["SURELANE_HANDLERS"]).all() for kind in handler.kinds))
"""


@pytest.fixture(scope="module")
def team_image(images: dict[str, str]) -> Iterator[str]:
    """The example team's image, built on the worker's."""
    name = f"surelane-test-team:{images['worker'].partition(':')[2]}"
    run(
        "docker",
        "build",
        "--quiet",
        "--build-arg",
        f"VERSION={version()}",
        "-t",
        name,
        str(ROOT / "examples/team"),
    )
    yield name
    run("docker", "image", "rm", name, check=False)


def test_a_teams_image_runs_the_teams_handlers_without_privileges(team_image: str) -> None:
    sandbox = ("--read-only", "--user=65532", "--cap-drop=ALL", "--network=none")
    loaded = run("docker", "run", "--rm", *sandbox, "--entrypoint=python", team_image, "-c", LOADED).stdout

    assert "slack.app_mention" in loaded.split()


def test_a_teams_image_says_in_one_line_what_it_lacks(team_image: str) -> None:
    ended = run("docker", "run", "--rm", "--network=none", team_image, check=False)

    assert ended.returncode == 2
    assert "DATABASE_URL is not set" in ended.stdout + ended.stderr

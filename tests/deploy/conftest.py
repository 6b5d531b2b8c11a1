"""What the tests of deployments share."""

import pytest

from tests.deploy.commands import run, version
from tests.deploy.compose import engine

IMAGES = ("ingest", "worker", "migrations", "simulator")


@pytest.fixture(scope="session")
def images() -> dict[str, str]:
    """Builds the images, as ``make images`` does; answers their names with tag."""
    engine()
    run("make", "--no-print-directory", "images", within=600)
    return {image: f"surelane-{image}:{version()}" for image in IMAGES}

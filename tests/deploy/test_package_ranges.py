"""The oldest and the newest of what the packages allow run a new project."""

import tomllib
from pathlib import Path

import pytest

from tests.deploy.commands import ROOT, run
from tests.deploy.packages import INDEXES, SOURCES, assert_its_tests_pass, environment


def direct_requirements() -> list[str]:
    """Return what the packages and their extras demand of others."""
    wanted: set[str] = set()
    for source in SOURCES.values():
        project = tomllib.loads((ROOT / source / "pyproject.toml").read_text())["project"]
        for listed in (project["dependencies"], *project.get("optional-dependencies", {}).values()):
            wanted.update(name for name in listed if not name.startswith("surelane"))
    return sorted(wanted)


@pytest.mark.packages
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("resolution", "beside"), [("lowest-direct", direct_requirements()), ("highest", ["openai-agents"])]
)
def test_both_ends_of_the_ranges_run_a_new_project(
    resolution: str, beside: list[str], wheels: dict[str, Path], tmp_path: Path
) -> None:
    """The newest also beside another framework, without a conflict. The oldest that each package allows, too."""
    links = ("--find-links", wheels["surelane"].parent)
    bin_, pip = environment(tmp_path)
    run(*pip, "install", "--quiet", "uv", within=120, env=INDEXES)
    wanted = (
        "surelane-dev[testing]",
        "surelane-agents[evals]",
        "surelane-bolt",
        "surelane-drivers",
        "surelane[encryption]",
        *beside,
    )
    install = ("pip", "install", "--quiet", "--python", bin_ / "python", "--resolution", resolution)
    run(bin_ / "uv", *install, *links, *wanted, within=600, env=INDEXES)
    run(bin_ / "uv", "pip", "check", "--python", bin_ / "python")
    for kind in ((), ("--agent",)):
        project = tmp_path / f"bot{len(kind)}"
        run(bin_ / "surelane", "new", *kind, project)
        assert_its_tests_pass(bin_ / "python", project)

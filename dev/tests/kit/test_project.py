"""The tests of a new project pass: as `surelane new` writes it, and as docs/tutorial.md goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from surelane_dev.new import write_project
from tests.databases import SERVER, Server
from tests.docs.blocks import blocks

WITHOUT = [
    f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "langsmith_plugin", "xdist", "anyio")
]
"""Plugins that a team's project does not install. Importing them takes seconds of processor time."""
OWN_CLIENT = """

from slack_sdk import WebClient

me = WebClient(token=os.environ["SLACK_BOT_TOKEN"]).auth_test()["user"]


@app.event("reaction_added")
def reacted(event, client):
    client.chat_postMessage(channel=event["item"]["channel"], text=me)
"""
OWN_CLIENT_TEST = """

async def test_reaction(slack: Slack) -> None:
    sent = await slack.message("hello")
    await slack.react(sent, "eyes")
    assert [message.text for message in sent.channel.messages.values()] == ["hello", "surelane"]
"""


def run_tests(project: Path, server: Server, tests: int) -> None:
    """Run a project's tests in an interpreter of their own, without a variable of Slack."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("SLACK_")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--assert=plain", *WITHOUT],
        cwd=project,
        env={**given, SERVER: server.admin},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{tests} passed" in ran.stdout
    assert "warning" not in ran.stdout


@pytest.mark.timeout(660)  # most of it is the imports of an interpreter
@pytest.mark.parametrize(("kind", "tests"), [("", 4), ("agent", 6)])
def test_tests_of_a_new_project_pass(server: Server, tmp_path: Path, kind: str, tests: int) -> None:
    write_project(tmp_path / "mybot", kind)
    run_tests(tmp_path / "mybot", server, tests)


@pytest.mark.timeout(660)
def test_a_bolt_app_finds_the_simulated_slack_when_it_is_imported(server: Server, tmp_path: Path) -> None:
    write_project(tmp_path / "mybot", "bolt")
    manifest = tmp_path / "mybot/manifest.yaml"
    mentions = "      - app_mention\n"
    manifest.write_text(manifest.read_text().replace(mentions, f"{mentions}      - reaction_added\n"))
    for name, more in (("mybot/handlers.py", OWN_CLIENT), ("tests/test_handlers.py", OWN_CLIENT_TEST)):
        with (tmp_path / "mybot" / name).open("a") as file:
            file.write(more)
    run_tests(tmp_path / "mybot", server, 4)


@pytest.mark.timeout(660)
def test_the_project_of_the_tutorial_passes_its_tests(server: Server, tmp_path: Path) -> None:
    project = tmp_path / "deploybot"
    write_project(project)
    for block in blocks("python", "yaml", page="docs/tutorial.md"):
        name, _, added = block.role.partition(" ")
        file, lines = project / name, block.code
        if name == "manifest.yaml":
            before, marked, after = file.read_text().partition("  slash_commands:\n")
            lines = before + marked + "".join(f"    {line}\n" for line in lines.splitlines()) + after
        elif added:
            lines = f"{file.read_text()}\n\n{lines}"
        file.write_text(lines)
    run_tests(project, server, 4)

"""Read the code and the commands of the pages, and run them as a developer does."""

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.deploy.commands import ROOT, run
from tests.docs.blocks import blocks


def code(page: str, part: str = "") -> str:
    """Return the Python of a page, or its block with ``part``."""
    found = [block.code for block in blocks("python", page=page) if not block.role and part in block.code]
    assert found, f"{page} has no block with {part!r}"
    return "\n\n".join(found if not part else found[:1])


def command(page: str, start: str) -> str:
    """Return a command of a page that begins so: from a block, without its comment, or from the text."""
    lines = [line for block in blocks("sh", page=page) for line in block.code.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", (ROOT / page).read_text())
    return next(re.sub(r"\s+# .*", "", line) for line in lines if line.startswith(start))


@dataclass
class Day:
    """A developer's environment and project; what went wrong in its tests; what stands for the reader's words."""

    home: Path
    env: dict[str, str]
    failed: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        return self.home / "mybot"

    def does(self, page: str, start: str, where: str = "mybot") -> str:
        """Run a page's command; return what it said."""
        return self.runs(command(page, start), where)

    def runs(self, line: str, where: str = "mybot", **given: str) -> str:
        stands = {**given, "DIRECTORY": self.env["PIP_FIND_LINKS"], **self.given, **given}
        for name, value in stands.items():
            line = line.replace(name, value)
        done = run("sh", "-ec", line, where=self.home / where, env=self.env, within=600, check=False)
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{line} ended with {done.returncode}:\n{said}"
        return said

    def tests(self, where: str) -> None:
        """Run a project's tests; keep what failed."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", self.env["PATH"])
            report = self.home / "report.xml"
            run("pytest", "-q", f"--junitxml={report}", where=self.home / where, within=600, check=False)
        for case in ET.parse(report).iter("testcase"):
            self.failed[case.attrib["name"]] = "".join(
                found.text or found.attrib["message"]
                for sort in ("failure", "error")
                for found in case.iter(sort)
            )

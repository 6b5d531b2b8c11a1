"""Explore all configurations, print what was explored, and with RECORD=1 write it into the documentation.

``--trace NAME`` prints the shortest way in which an old rule breaks its promise.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from tests.specification.checker import Report, check
from tests.specification.configurations import CONFIGURATIONS, LARGE, OLD_RULES

PAGE = Path(__file__).parents[2] / "docs" / "specification.md"
MARK = "<!-- recorded -->"


def row_of_configuration(name: str, report: Report) -> str:
    about = {**CONFIGURATIONS, **LARGE}[name].about
    return f"| `{name}` | {about} | {report.states:,} | {report.steps:,} | {report.depth} |"


def row_of_old_rule(name: str, report: Report) -> str:
    rule = OLD_RULES[name]
    ways = list((PAGE.parent / "adr").glob(f"{rule.decided}-*.md"))
    return f"| `{name}`: {rule.about} | {report.why} | {len(report.trace)} | [{rule.decided}](adr/{ways[0].name}) |"


def say(what: object) -> None:
    print(what, flush=True)  # noqa: T201 - it is a command


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--trace", choices=OLD_RULES)
    name = arguments.parse_args().trace
    if name:
        say(check(CONFIGURATIONS[OLD_RULES[name].configuration].put_back(name)))
        return 0
    lines = ["| configuration | what happens | states | steps | depth |", "|---|---|---:|---:|---:|"]
    wrong = 0
    for name, configuration in {**CONFIGURATIONS, **LARGE}.items():
        began = time.process_time()
        report = check(configuration.put_back())
        wrong += bool(report.why)
        lines.append(row_of_configuration(name, report))
        say(f"{name}: {report} ({time.process_time() - began:.1f} s)")
    lines += ["", "| old rule | what breaks | steps to it | decision |", "|---|---|---:|---|"]
    for name, rule in OLD_RULES.items():
        report = check(CONFIGURATIONS[rule.configuration].put_back(name))
        wrong += rule.broken not in report.why
        lines.append(row_of_old_rule(name, report))
        say(f"{name}: {report.why} after {len(report.trace)} steps")
    if os.environ.get("RECORD"):
        before, _, after = PAGE.read_text().split(MARK)
        PAGE.write_text("\n".join([before + MARK, "", *lines, "", MARK + after]))
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())

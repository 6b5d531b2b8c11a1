"""Links and names of the documentation lead somewhere, its prose keeps to the rules, SQL files have maps."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCES = [
    file
    for folder in ("benchmarks", "dev", "examples", "k8s", "migrations", "services", "shared", "tests")
    for suffix in ("py", "sql")
    for file in sorted((ROOT / folder).rglob(f"*.{suffix}"))
    if "node_modules" not in file.parts  # a peer of the benchmarks
    and file != Path(__file__)
]
PROSE = {".py": r'"""(?s:.*?)"""|# .*', ".sql": r"--.*", ".md": r"(?s:.*)"}
"""The prose of a file: docstrings and comments of a program, the whole of a page."""
RETIRED = re.compile(
    r"\b(dear|twins?|nobody|whoever|whatever|any\s+more|none\s+of\s+which|told\s+to|heeds?|befalls?"
    r"|gives?\s+back|gave\s+back|in\s+vain|entit(y|ies)|for\s+ever)\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    lost = []
    for link in LINK.findall(page.read_text()):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        inside = "://" not in link and not link.startswith("mailto:")
        if inside and (not target.exists() or (anchor and anchor not in anchors(target))):
            lost.append(link)
    assert not lost


def test_our_packages_are_installed_from_a_directory_everywhere() -> None:
    """No index has them yet, so a name without ``--find-links`` may be somebody else's package."""
    bare = re.compile(r"pip install (?!--find-links)['\"]?surelane")
    files = [*PAGES, *SOURCES, *ROOT.glob("extensions/*/README.md"), *ROOT.glob("dev/src/**/*.txt")]
    files += ROOT.glob("extensions/*/src/**/*.py")
    told = [str(file) for file in files if bare.search(file.read_text()) and file.name != "test_blocks.py"]
    assert told == []


def test_links_are_found_at_all_what_shows_a_promise_exists_and_each_page_is_listed() -> None:
    """Otherwise a wrong pattern would leave nothing to check."""
    links = [link for page in PAGES for link in LINK.findall(page.read_text())]
    assert len(links) > 50
    assert [link for link in links if "#" in link]
    assert "the-words" in anchors(ROOT / "docs/concepts.md")
    named = set(re.findall(r"`([\w/]+/test_\w+\.py)`", (ROOT / "docs/reliability.md").read_text()))
    assert len(named) > 10
    assert not [name for name in named if not any((ROOT / at / name).is_file() for at in ("tests", "."))]
    # The site's menu is made from these lists.
    for page in ("index", "performance/README"):
        file = ROOT / f"docs/{page}.md"
        listed = {(file.parent / link.partition("#")[0]).resolve() for link in LINK.findall(file.read_text())}
        pages = set(file.parent.glob("*.md")) | set(file.parent.glob("reference/*.md"))
        assert pages - listed - {file} == set(), f"{file} does not list these pages"


def test_the_figures_of_the_promises_are_the_sums_of_the_measured_table() -> None:
    promises, _, rest = (ROOT / "docs/reliability.md").read_text().partition("<!-- made by tests/chaos")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in rest.split("<!--")[0].splitlines()
        if "|" in line
    ]
    names, _, *measured = rows
    sums = {name: sum(float(row[nth] or 0) for row in measured) for nth, name in enumerate(names) if nth}
    sent = sums["events sent"]
    assert sent == sums["answered 200"]
    assert (
        not sums["lost"] + sums["double handled"] + sums["claims over the limit"] + sums["duplicate replies"]
    )
    longest = max(float(row[names.index("well again after, s")]) for row in measured)
    for figure in (
        f"0 lost of {sent:,.0f}",
        f"0 double claims of {sent:,.0f} events",
        f"0 duplicates of {2 * sent:,.0f} replies",
        f"0 effects of {sums['handlers stopped']:.0f} stopped handlers",
        f"{longest} s at most",
    ):
        assert f"| {figure} |" in promises


def test_lines_of_pages_and_sql_comments_have_at_most_100_columns() -> None:
    """A table's row cannot be wrapped, so rows may be longer."""
    scripts = [file for file in SOURCES if file.suffix == ".sql"]
    long = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in [*PAGES, *scripts]
        if file.name != "CHANGELOG.md" and file.parent.name != "reference"  # made from the code
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > 100 and (line[0] != "|" if file.suffix == ".md" else "--" in line)
    ]
    assert not long


def test_sql_has_at_most_110_columns_400_lines_a_file_and_9000_in_all() -> None:
    files = {
        f"{file.parent.name}/{file.name}": file.read_text().splitlines()
        for file in (ROOT / "migrations").glob("*/*.sql")
    }
    wide = [
        f"{name}:{number}"
        for name, lines in files.items()
        for number, line in enumerate(lines, 1)
        if len(line) > 110
    ]
    assert not wide
    assert not [name for name, lines in files.items() if len(lines) > 400]
    assert sum(map(len, files.values())) <= 9000


def test_prose_uses_none_of_the_retired_words_and_has_no_marks_of_an_unresolved_merge() -> None:
    """Words in backticks are names."""
    assert not [page for page in PAGES if re.search(r"^[<>]{7} ", page.read_text(), re.MULTILINE)]
    found = [
        f"{file.relative_to(ROOT)}: {word[0]}"
        for file in [*PAGES, *SOURCES]
        for part in re.finditer(PROSE[file.suffix], file.read_text())
        for word in RETIRED.finditer(re.sub(r"`+[^`]*`+", "", part[0]))
    ]
    assert not found


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


FILES = sorted((ROOT / "migrations/idempotent").glob("*.sql"))
MADE = re.compile(r"^create or replace (?:function|view) agent\.(\w+)", re.MULTILINE)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_file_opens_with_a_map_of_its_functions(file: Path) -> None:
    text = file.read_text()
    opening = text.partition("\n\n")[0]
    assert all(line.startswith("--") for line in opening.splitlines())
    listed = re.findall(r"^--   ([\w, ]+): ", opening, re.MULTILINE)
    names = [name for line in listed for name in line.split(", ")]
    assert names or file.stem.endswith("-grants"), "it makes no function"
    assert sorted(names) == sorted(set(MADE.findall(text)))


def test_the_engines_page_names_functions_that_exist() -> None:
    made = {name for file in FILES for name in MADE.findall(file.read_text())}
    page = (ROOT / "docs/engine.md").read_text()
    calls = page.partition("## Who calls what, and when")[2].partition("## The mechanisms")[0]
    rows = [line for line in calls.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)} - {"replace", "earliest", "busy"}
    assert len(named) > 30
    assert named <= made

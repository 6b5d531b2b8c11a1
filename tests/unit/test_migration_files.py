"""Migration scripts that break a rule are refused, without a database; versions and durations are read."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from surelane_migrations.common.durations import parse_duration
from surelane_migrations.errors import DifferentError, ScriptsError
from surelane_migrations.files import ScriptStatus, compare, discover
from surelane_migrations.version import MIN_COMPATIBLE, RELEASE, Version
from tests.sql.releases import digest_of, parse_releases


def write(directory: Path, **folders: list[str]) -> Path:
    """Make script directories. Each script's text is its name as a comment."""
    for folder, names in {"incremental": ["000-a.sql"], "idempotent": ["000-z.sql"], **folders}.items():
        (directory / folder).mkdir(parents=True)
        for name in names:
            (directory / folder / name).write_text(f"-- {name}\nselect 1;\n")
    return directory


def applied(directory: Path) -> list[ScriptStatus]:
    """Return the rows of agent.migration after all of a directory's scripts."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        ScriptStatus(script.file_name, "0.1.0", moment, script.checksum)
        for script in discover(directory).incremental
    ]


def test_scripts_come_in_the_order_of_their_numbers_without_an_editors_hidden_files(tmp_path: Path) -> None:
    write(tmp_path, incremental=["001-a.sql", "000-b.sql", "002-a-b_c.sql"])
    (tmp_path / "incremental" / ".000-a.sql.swp").write_bytes(b"\0")
    scripts = discover(tmp_path)
    assert [script.file_name for script in scripts.incremental] == ["000-b.sql", "001-a.sql", "002-a-b_c.sql"]
    assert [script.label for script in scripts][-1] == "idempotent/000-z.sql"


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        (["001-a.sql"], "incremental/001-a.sql should have number 000"),
        (["000-a.sql", "002-b.sql"], "incremental/002-b.sql should have number 001"),
        (["000-a.sql", "000-b.sql"], "incremental/000-a.sql and incremental/000-b.sql have the same number"),
        (["000-a.sql", "0001-b.sql"], "incremental/0001-b.sql: scripts are called NNN-name.sql"),
        *(
            ([name], f"incremental/{name}: scripts are called NNN-name.sql")
            for name in ("0000-a.sql", "00-a.sql", "000_a.sql", "000-A.sql", "000-a.sql.orig")
        ),
        (["\N{ARABIC-INDIC DIGIT ZERO}" * 3 + "-a.sql"], "scripts are called NNN-name.sql"),
        ([], "holds no scripts"),
    ],
)
def test_a_name_that_breaks_a_rule_is_named(tmp_path: Path, names: list[str], complaint: str) -> None:
    with pytest.raises(ScriptsError, match=complaint):
        discover(write(tmp_path, incremental=names))


def test_a_script_that_is_empty_or_no_text_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    for content in (b"", b" \n", b"select '\xff';", b"select '\0';"):
        (tmp_path / "incremental" / "000-a.sql").write_bytes(content)
        with pytest.raises(ScriptsError, match=r"incremental/000-a\.sql"):
            discover(tmp_path)
    (tmp_path / "incremental" / "000-a.sql").write_text("select 1;")
    shutil.rmtree(tmp_path / "idempotent")
    with pytest.raises(ScriptsError, match="idempotent is not a directory"):
        discover(tmp_path)


def test_only_what_was_not_applied_is_pending_and_the_digest_knows_names_and_texts(tmp_path: Path) -> None:
    before = applied(write(tmp_path))
    (tmp_path / "incremental" / "001-b.sql").write_text("select 2;")
    script = tmp_path / "incremental" / "000-a.sql"
    script.write_bytes(
        script.read_bytes().replace(b"\n", b"\r\n")
    )  # line ends of another system are no change
    comparison = compare(discover(tmp_path), before)
    assert [script.file_name for script in comparison.pending] == ["001-b.sql"]
    comparison.require_unchanged()
    digests = {digest_of(discover(tmp_path))}
    (tmp_path / "idempotent" / "000-z.sql").write_text("select 4;")
    digests.add(digest_of(discover(tmp_path)))
    (tmp_path / "idempotent" / "000-z.sql").rename(tmp_path / "idempotent" / "000-y.sql")
    digests.add(digest_of(discover(tmp_path)))
    (tmp_path / "incremental" / "001-b.sql").write_text("select 5;")
    digests.add(digest_of(discover(tmp_path)))
    assert len(digests) == 4


def test_an_applied_script_that_changed_or_vanished_is_named(tmp_path: Path) -> None:
    before = applied(write(tmp_path, incremental=["000-a.sql", "001-b.sql", "002-c.sql"]))
    (tmp_path / "incremental" / "000-a.sql").write_text("select 3;")
    (tmp_path / "incremental" / "002-c.sql").rename(tmp_path / "incremental" / "002-d.sql")
    with pytest.raises(DifferentError) as caught:
        compare(discover(tmp_path), before).require_unchanged()
    assert "000-a.sql changed" in str(caught.value)
    assert "002-c.sql was applied and is gone" in str(caught.value)
    assert "001-b.sql" not in str(caught.value)


def test_releases_are_read_line_by_line() -> None:
    assert parse_releases("# comment\n\n0.1.0 ab\n0.2.0  cd\n") == {"0.1.0": "ab", "0.2.0": "cd"}


def test_nonsense_is_no_version_and_no_duration_and_this_release_serves_itself() -> None:
    for text in ("", "1.2.3-", "1.2.x", "1.2.3 '"):
        with pytest.raises(ValueError, match="Invalid version"):
            Version(text)
    for text in ("", "-1s", "1y", "ten", "1e9999", "1s1s"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(text)
    assert MIN_COMPATIBLE <= RELEASE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("0.5s", 0.5), (".5", 0.5), ("10m", 600), ("1h", 3600), (" 2 S ", 2), ("0", 0), (3, 3)],
)
def test_durations_are_read(text: object, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)

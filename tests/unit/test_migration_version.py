"""Migrations parse and compare semantic versions, and parse durations."""

import random
from datetime import timedelta

import pytest

from surelane_migrations.migration_settings import parse_duration
from surelane_migrations.version import MIN_COMPATIBLE, RELEASE, Version

ASCENDING = [
    *("0.1.0", "0.2.0-alpha.1", "0.2.0", "0.9.9", "0.10.0", "1.0.0-1", "1.0.0-2", "1.0.0-10", "1.0.0-alpha"),
    *("1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1"),
    *("1.0.0", "1.0.1", "1.1.0", "2.0.0", "10.0.0"),
]


def test_versions_order_as_semver_has_it() -> None:
    shuffled = random.Random(1).sample(ASCENDING, len(ASCENDING))
    assert [str(version) for version in sorted(Version.parse(text) for text in shuffled)] == ASCENDING


@pytest.mark.parametrize(
    ("packaged", "semantic"),
    [("1.2.3rc4", "1.2.3-rc.4"), ("1.2.3a1", "1.2.3-alpha.1"), ("1.2.3+local", "1.2.3")],
)
def test_a_packaged_version_is_read_as_the_semantic_one(packaged: str, semantic: str) -> None:
    assert Version.parse(packaged) == Version.parse(semantic)
    assert str(Version.parse(packaged)) == semantic


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1.2",
        "1.2.3.4",
        "v1.2.3",
        "01.2.3",
        "1.2.3-",
        "1.2.x",
        "1.2.3 ",
        "1.2.\N{ARABIC-INDIC DIGIT THREE}",
    ],
)
def test_nonsense_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is not a semantic version"):
        Version.parse(text)


def test_this_release_serves_itself() -> None:
    assert MIN_COMPATIBLE <= RELEASE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("0.5s", 0.5), (".5", 0.5), ("10m", 600), ("1h", 3600), (" 2 S ", 2), ("0", 0), (3, 3)],
)
def test_durations_are_read_as_the_services_read_them(text: object, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "-1s", "1y", "ten", "1e9999", "999999999s", "1s1s"])
def test_nonsense_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)

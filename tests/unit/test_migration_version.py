"""Migrations know their release, and parse durations."""

from datetime import timedelta

import pytest

from surelane_migrations.migration_settings import parse_duration
from surelane_migrations.version import MIN_COMPATIBLE, RELEASE, Version


def test_nonsense_is_no_version_and_no_duration_and_this_release_serves_itself() -> None:
    for text in ("", "1.2.3-", "1.2.x", "1.2.3 '"):
        with pytest.raises(ValueError, match="Invalid version"):
            Version(text)
    for text in ("", "-1s", "1y", "ten", "1e9999", "999999999s", "1s1s"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(text)
    assert MIN_COMPATIBLE <= RELEASE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("0.5s", 0.5), (".5", 0.5), ("10m", 600), ("1h", 3600), (" 2 S ", 2), ("0", 0), (3, 3)],
)
def test_durations_are_read_as_the_services_read_them(text: object, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)

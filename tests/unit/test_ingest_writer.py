"""What Slack may send again, and what it may not."""

import pytest

from surelane.errors import Conflict, Forbidden, InvalidInput, SchemaMissing, TransientConflict
from surelane_ingest.writer import NotStored, _reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InvalidInput("no text", "22P05"), NotStored.UNSTORABLE),
        (Conflict("locked", "55P03"), NotStored.BLOCKED),
        (TransientConflict(), None),
        (Forbidden(), NotStored.REFUSED),
        (SchemaMissing(), NotStored.REFUSED),
        (OSError(), NotStored.REFUSED),
    ],
    ids=repr,
)
def test_an_event_that_the_database_cannot_hold_is_alone_refused_for_good(
    error: Exception, reason: NotStored | None
) -> None:
    assert _reason(error) is reason

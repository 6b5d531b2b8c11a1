"""What a caller of the database logs and notes when a call fails, and that it goes on."""

from unittest.mock import Mock

import pytest

from surelane.errors import DatabaseRefused, DatabaseUnavailable, OutcomeUnknown, TransientConflict
from surelane_worker.observing.readiness import Outage, excused


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (DatabaseRefused("a secret"), "error"),
        (TransientConflict("a secret"), "info"),
        (DatabaseUnavailable("a secret"), None),
        (OutcomeUnknown("a secret"), None),
    ],
)
def test_a_failed_call_is_logged_once_without_its_message(error: Exception, logged: str | None) -> None:
    log = Mock()
    with excused(log, "poll failed", kind="mail"):
        raise error
    if logged is None:
        assert not log.mock_calls, "the claimer logs the outage"
    else:
        getattr(log, logged).assert_called_once_with("poll failed", kind="mail", error=type(error).__name__)
        assert len(log.mock_calls) == 1


def test_only_an_absent_database_is_an_outage_and_an_answer_ends_it() -> None:
    outage = Mock(spec=Outage)
    with excused(Mock(), "poll failed", outage):
        raise DatabaseUnavailable
    outage.goes_on.assert_called_once()
    with excused(Mock(), "poll failed", outage):
        raise DatabaseRefused
    outage.is_over.assert_not_called()
    with excused(Mock(), "poll failed", outage):
        pass
    outage.is_over.assert_called_once()
    with pytest.raises(ZeroDivisionError), excused(Mock(), "poll failed"):
        raise ZeroDivisionError

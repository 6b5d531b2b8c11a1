"""What a worker notes when a call fails; histograms are the same for Prometheus and the SDK."""

from unittest.mock import Mock

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from surelane.errors import (
    DatabaseRefused,
    DatabaseUnavailable,
    InvalidInput,
    OutcomeUnknown,
    TransientConflict,
    described,
)
from surelane_worker.observing.metrics import Distribution
from surelane_worker.observing.readiness import Outage, excused


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (InvalidInput("a secret"), "error"),
        (TransientConflict(), "info"),
        (DatabaseUnavailable("a secret"), None),
        (OutcomeUnknown("a secret"), None),
    ],
)
def test_a_failed_call_is_logged_once_without_a_refused_value(error: Exception, logged: str | None) -> None:
    log = Mock()
    with excused(log, "poll failed", kind="mail"):
        raise error
    if logged is None:
        assert not log.mock_calls, "the claimer logs the outage"
    else:
        line = {"kind": "mail"} | described(error)
        getattr(log, logged).assert_called_once_with("poll failed", **line)
        assert "secret" not in str(line)
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


def test_buckets_are_cumulative_bounds_inclusive_and_pushed_values_pass_through_the_sdk() -> None:
    distribution = Distribution("a.b", "Values.", bounds=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        distribution.add("kind", value)
    samples = {(s.name, s.labels.get("le")): s.value for s in distribution.family().samples}
    assert samples == {
        ("a_b_seconds_bucket", "0.1"): 2,
        ("a_b_seconds_bucket", "1.0"): 3,
        ("a_b_seconds_bucket", "+Inf"): 4,
        ("a_b_seconds_count", None): 4,
        ("a_b_seconds_sum", None): 7.65,
    }
    reader = InMemoryMetricReader()
    distribution = Distribution("a.b", "Values.", bounds=(0.1, 1.0))
    distribution.record_with(MeterProvider([reader]).get_meter("test"))
    distribution.add("kind", 0.5)
    data = reader.get_metrics_data()
    assert data is not None
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    (point,) = metric.data.data_points
    assert isinstance(point, HistogramDataPoint)
    assert (metric.name, metric.unit, point.count, list(point.bucket_counts)) == ("a.b", "s", 1, [0, 1, 0])

"""Histograms are the same for Prometheus and for the SDK."""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from surelane_worker.observing.metrics import Distribution


def test_buckets_are_cumulative_and_bounds_inclusive() -> None:
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


def test_pushed_values_pass_through_the_sdk() -> None:
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

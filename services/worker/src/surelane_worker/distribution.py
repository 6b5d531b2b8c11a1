"""How values are distributed: buckets counted in plain lists, as recording through the SDK costs ten microseconds."""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Up to minutes: agents are slow."""
KIND = "messaging.destination.name"


class Distribution:
    """How values of one sort are distributed, for each kind."""

    def __init__(
        self, name: str, description: str, label: str = KIND, bounds: Sequence[float] = SECONDS
    ) -> None:
        self.name = name
        self.description = description
        self.label = label
        self.bounds = bounds
        self.counts: dict[str, list[int]] = {}
        self.sums: dict[str, float] = {}

    def add(self, kind: str, value: float) -> None:
        """Counts one value."""
        counts = self.counts.get(kind)
        if counts is None:
            counts = self.counts[kind] = [0] * (len(self.bounds) + 1)
            self.sums[kind] = 0.0
        counts[bisect_left(self.bounds, value)] += 1
        self.sums[kind] += value

    def family(self) -> HistogramMetricFamily:
        """What Prometheus scrapes."""
        name = self.name.replace(".", "_") + "_seconds"
        family = HistogramMetricFamily(name, self.description, labels=[self.label.replace(".", "_")])
        for kind, counts in self.counts.items():
            buckets, total = [], 0
            for bound, count in zip([*map(str, self.bounds), "+Inf"], counts, strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric([kind], buckets, self.sums[kind])
        return family

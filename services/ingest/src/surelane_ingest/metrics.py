"""Count what ingest does, in plain numbers that are read when metrics are collected."""

from collections import Counter
from collections.abc import Callable, Iterable

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from surelane_service.figures import MOST_KINDS
from surelane_service.probes import BoundedNames
from surelane_service.telemetry.setup import SCHEMA_URL, counted, messaging, single

_SEND = messaging("send")
_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5]


class IngestMetrics:
    """Counts since the process began. The instruments below say of what."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        """Make the instruments. ``waiting`` returns how many events wait for the database now."""
        self.answers: Counter[tuple[str, int]] = Counter()
        self.ignored: Counter[str] = Counter()
        self._sent: Counter[tuple[str, str]] = Counter()
        self._kinds = BoundedNames(MOST_KINDS)
        self.duplicates = self.altered = self.rate_limited = 0
        meter = metrics.get_meter("surelane_ingest", schema_url=SCHEMA_URL)
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of one insert of a batch of events, commit included.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        answers = counted(self.answers, "http.route", "http.response.status_code")
        for name, unit, description, observe in (
            ("answers", "{answer}", "Answers by route and status.", answers),
            ("ignored", "{request}", "Sound requests that were not taken.", counted(self.ignored, "reason")),
            ("duplicates", "{event}", "Events stored before.", single(lambda: self.duplicates)),
            ("altered", "{event}", "Events with replaced text.", single(lambda: self.altered)),
            ("rate_limited", "{notice}", "Slack's notices.", single(lambda: self.rate_limited)),
        ):
            meter.create_observable_counter(f"surelane.ingest.{name}", [observe], unit, description)
        meter.create_observable_counter(
            "messaging.client.sent.messages", [self._observe_sent], "{message}", "Events stored."
        )
        meter.create_observable_gauge(
            "surelane.ingest.waiting", [single(waiting)], "{event}", "Events waiting for the database."
        )

    def sent(self, kind: str, error: str = "") -> None:
        """Count an event that was stored or, with ``error``, was not. Do not call it for duplicates."""
        self._sent[self._kinds(kind), error] += 1

    def inserted(self, seconds: float, error: str = "") -> None:
        """Record one insert of a batch: its duration in seconds, and the error where it failed."""
        self._duration.record(seconds, _SEND | ({"error.type": error} if error else {}))

    def _observe_sent(self, _: CallbackOptions) -> Iterable[Observation]:
        for (kind, error), number in self._sent.items():
            attributes = messaging("send", kind)
            yield Observation(number, {**attributes, "error.type": error} if error else attributes)

"""Export spans by OTLP over HTTP.

The SDK's exporter has no parameter for an encoder, and its encoder takes longer for one span than a worker takes for an
event (ADR 0030). This exporter uses our encoder and reads the same standard variables. The timeout is in seconds, as in
the SDK.
"""

import gzip
import logging
import math
import os
import random
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from threading import Event
from urllib.parse import unquote

import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from surelane_service.telemetry.span_encoder import encode_spans

RETRYABLE = frozenset({429, 502, 503, 504})
"""The statuses after which OTLP tells a client to try again."""
FIRST_PAUSE = 1.0
TIMEOUT = 10.0
COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}

# Services log one line per minute and logger below "opentelemetry": every export fails while a collector is away.
_log = logging.getLogger("opentelemetry.exporter.surelane")


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failed post: a status or the type of an exception. Leave its message out, because it may quote a secret URL."""

    reason: str
    retryable: bool
    pause: float | None = None
    """Seconds after which the collector asks for the next try."""


class OtlpHttpExporter(SpanExporter):
    """Post batches of spans to the collector that the ``OTEL_EXPORTER_OTLP_*`` variables name."""

    def __init__(self) -> None:
        base = (os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318").removesuffix("/")
        self._url = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or f"{base}/v1/traces"
        self._timeout = _seconds(_setting("TIMEOUT"))
        self._verify = _setting("CERTIFICATE") or True
        certificate, key = _setting("CLIENT_CERTIFICATE"), _setting("CLIENT_KEY")
        self._certificate = (certificate, key) if certificate and key else certificate or None
        self._headers = {"user-agent": "surelane", **_headers(_setting("HEADERS"))}
        self._headers["content-type"] = "application/x-protobuf"
        self._compress = COMPRESS.get(compression := _setting("COMPRESSION").strip().lower())
        if self._compress is not None:
            self._headers["content-encoding"] = compression
        elif compression not in {"", "none"}:
            _log.warning("spans are sent uncompressed: OTEL_EXPORTER_OTLP_COMPRESSION is unknown")
        self._session = requests.Session()
        self._stopped = Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Post a batch. Try again within the timeout if the collector is busy or cannot be reached."""
        body = encode_spans(spans).SerializeToString()
        if self._compress is not None:
            body = self._compress(body)
        deadline = time.monotonic() + self._timeout
        backoff = FIRST_PAUSE
        while not self._stopped.is_set():
            failure = self._post(body, max(deadline - time.monotonic(), 0.01))
            if failure is None:
                return SpanExportResult.SUCCESS
            # Jitter keeps replicas that lost the same collector from coming back at the same moment.
            pause = backoff * random.uniform(0.8, 1.2) if failure.pause is None else failure.pause  # noqa: S311
            if not failure.retryable or time.monotonic() + pause >= deadline:
                _log.error("%d spans were not exported: %s", len(spans), failure.reason)
                break
            self._stopped.wait(pause)
            backoff *= 2
        return SpanExportResult.FAILURE

    def _post(self, body: bytes, within: float) -> _Failure | None:
        try:
            answer = self._session.post(
                self._url,
                body,
                headers=self._headers,
                timeout=within,
                verify=self._verify,
                cert=self._certificate,
                allow_redirects=False,
            )
        except requests.ConnectionError as error:
            return _Failure(type(error).__name__, retryable=True)
        except (OSError, ValueError) as error:
            return _Failure(type(error).__name__, retryable=isinstance(error, requests.Timeout))
        if answer.status_code // 100 == 2:
            _warn_of_rejected(answer.content)
            return None
        pause = _pause(answer.headers.get("retry-after", ""))
        return _Failure(f"status {answer.status_code}", answer.status_code in RETRYABLE, pause)

    def shutdown(self) -> None:
        """End the pause between two tries, and close the connections."""
        self._stopped.set()
        self._session.close()

    def force_flush(self, timeout_millis: int = 30000) -> bool:  # noqa: ARG002 - the interface's
        """Do nothing: an export is not buffered."""
        return True


def _setting(name: str) -> str:
    """Read a setting from the variable for traces, else from the variable for all signals."""
    specific = os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}")
    return specific or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _seconds(value: str) -> float:
    try:
        seconds = float(value or TIMEOUT)
    except ValueError:
        seconds = math.nan
    if 0 < seconds < math.inf:
        return seconds
    _log.warning("OTEL_EXPORTER_OTLP_TIMEOUT is not a number of seconds: using %s", TIMEOUT)
    return TIMEOUT


def _headers(value: str) -> dict[str, str]:
    """Parse ``name=value,name=value`` with percent-encoded parts. Never log them, because they carry credentials."""
    pairs = [each.partition("=") for each in value.split(",")]
    return {unquote(name).strip().lower(): unquote(text).strip() for name, _, text in pairs if name.strip()}


def _pause(retry_after: str) -> float | None:
    """Parse ``Retry-After``, seconds or a date. Return ``None`` if it is missing or malformed."""
    try:
        if retry_after.isascii() and retry_after.isdigit():
            return float(retry_after)
        return max(parsedate_to_datetime(retry_after).timestamp() - time.time(), 0.0)
    except ValueError:
        return None


def _warn_of_rejected(content: bytes) -> None:
    """Log the number of spans that the collector rejected. Leave out its message, which may quote them."""
    try:
        rejected = ExportTraceServiceResponse.FromString(content).partial_success.rejected_spans
    except Exception:  # noqa: BLE001 - protobuf's own, which has no type hints: the answer says nothing
        return
    if rejected:
        _log.warning("the collector rejected %d spans", rejected)

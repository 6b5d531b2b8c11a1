"""Logs: one line of JSON per occurrence, or a readable line on a terminal, with the active trace's id."""

import logging
import sys
import time
from collections.abc import MutableMapping
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import structlog
from opentelemetry import trace

Logger = structlog.stdlib.BoundLogger

EXPORT_PAUSE = 60.0
"""Seconds between lines of one of OpenTelemetry's loggers."""

development = SimpleNamespace(on=False)
"""Whether exceptions' messages are written too. They may quote what people wrote: for a developer's terminal only."""

_service: ContextVar[str | None] = ContextVar("service", default=None)
"""The service of the current task: `surelane dev` runs all of them in one process."""
_services: list[str] = []  # of this process; lines of no task have the first one's name

# Without local variables: they hold secrets and people's messages.
_traceback = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


def configure_logs(service: str, level: str = "info") -> None:
    """Send structlog and the standard library's loggers to standard output in one format."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace,
    ]
    renderers: list[Any]
    _service.set(service)
    _services.append(service)
    if sys.stdout.isatty():
        renderers = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    else:
        renderers = [
            lambda _, __, line: line | {"service": _service.get() or _services[0]},
            structlog.processors.ExceptionRenderer(_types_only),
            structlog.processors.JSONRenderer(),
        ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    handler.addFilter(_Seldom("opentelemetry", EXPORT_PAUSE))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("asyncio", "slack_sdk", "aiohttp.access", "httpx2", "mcp"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


def shown(error: BaseException) -> BaseException | None:
    """Return an error of a handler in development, to log its traceback; ``None`` in production."""
    return error if development.on else None


def get_logger(name: str) -> Logger:
    """Return a logger whose lines carry ``name`` and the values bound to it."""
    logger: Logger = structlog.stdlib.get_logger(name)
    return logger


class _Seldom(logging.Filter):
    """Pass one line per pause of each logger below ``name``: while a collector is away, every export fails.

    Exceptions appear by their type: a connection error quotes the URL, which may hold a secret.
    """

    def __init__(self, name: str, pause: float) -> None:
        super().__init__(name)
        self._pause = pause
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if not super().filter(record):
            return True
        if now < self._next.get(record.name, now):
            return False
        self._next[record.name] = now + self._pause
        if isinstance(record.args, tuple):
            record.args = tuple(
                type(each).__name__ if isinstance(each, Exception) else each for each in record.args
            )
        return True


def _types_only(exc_info: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - structlog's ExcInfo
    """Return a stack trace without the exceptions' messages, which may quote what people wrote."""
    stacks = _traceback(exc_info)
    return stacks if development.on else [_type_only(stack) for stack in stacks]


def _type_only(stack: dict[str, Any]) -> dict[str, Any]:
    nested = [[_type_only(inner) for inner in group] for group in stack.get("exceptions", ())]
    return {**stack, "exc_value": "", "exc_notes": [], "syntax_error": None, "exceptions": nested}


def _add_trace(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    context = trace.get_current_span().get_span_context()
    if context.trace_flags.sampled:
        line["trace_id"] = trace.format_trace_id(context.trace_id)
    return line

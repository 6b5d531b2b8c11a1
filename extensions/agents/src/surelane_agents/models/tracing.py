"""Make the spans of models and tools, by OpenTelemetry's conventions for generative AI.

They are below the attempt's span, and are made only where that is sampled. They have no text: no message, no argument,
no result. pydantic-ai makes a model's. A stored response or result has none, because nothing was asked.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache

from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider
from pydantic_ai.models import Model
from pydantic_ai.models.instrumented import InstrumentationSettings, InstrumentedModel

from surelane_service.telemetry.spans import within


@cache
def _settings() -> InstrumentationSettings:
    # Our own metrics have the workspace, and a bounded number of labels.
    return InstrumentationSettings(
        meter_provider=NoOpMeterProvider(), include_content=False, include_model_request_parameters=False
    )


def traced(model: Model) -> Model:
    """Return a model whose requests are spans, if the attempt's is recorded."""
    return InstrumentedModel(model, _settings()) if trace.get_current_span().is_recording() else model


def within_tool(name: str) -> AbstractContextManager[None]:
    """Return a block within the span of a tool's call, if the attempt's is recorded."""
    if not trace.get_current_span().is_recording():
        return nullcontext()
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    tracer = trace.get_tracer("surelane_worker")
    return within(tracer.start_span(f"execute_tool {name}", attributes=attributes))

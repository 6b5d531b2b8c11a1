"""The spans of an agent's turn: below its attempt, by the conventions for generative AI, and without text."""

from extensions.agents.tests.system.model_server import OURS, Reply, calls, model_server, says, settings
from surelane.trace_context import trace_id_of
from tests.otlp import PROTOCOLS, Received, receiving
from tests.processes import until
from tests.sql.migrations import connected
from tests.system.worker import ended, enqueue, worker

MARKED = "marked-words"


async def test_model_and_tools_are_spans_without_text(database: str) -> None:
    async with (
        connected(database) as connection,
        model_server() as model,
        receiving(PROTOCOLS[0]) as receiver,
    ):
        model.plans["traced"] = [
            calls(("weather", {"city": MARKED}), ("fail", {"text": MARKED}), text=[MARKED]),
            [Reply(status=503), says(f"Blue. {MARKED}")],
        ]
        given = settings(model, **OURS, **receiver.env)
        async with worker(database, SURELANE_MODEL_INSTRUCTIONS=MARKED, **given):
            identity = await enqueue(connection, "agent-turn", {"text": f"plan:traced {MARKED}"})
            assert (await ended(connection, identity))["outcome"] == "completed"
        key = str(identity)
        await until(lambda: len(_named(receiver.trace(trace_id_of(key)), "chat")) == 3, what="the spans")
        spans = receiver.trace(trace_id_of(key))
    attempts = {span.id for span in _named(spans, "process")}
    first, refused, last = _named(spans, "chat local")
    assert {each.parent for each in (first, refused, last)} <= attempts
    assert first.attributes["gen_ai.request.model"] == "local"
    assert first.attributes["gen_ai.usage.input_tokens"] == 100
    assert refused.attributes.get("gen_ai.usage.input_tokens") is None
    assert {span.name: span.attributes.get("error.type") for span in _named(spans, "execute_tool")} == {
        "execute_tool weather": None,
        "execute_tool fail": "LookupError",
    }
    assert MARKED.encode() not in receiver.exported


def _named(spans: list[Received], start: str) -> list[Received]:
    return [span for span in spans if span.name.startswith(start)]

"""How a response of a model may end: what it costs in requests, what the person sees, and how the turn ends."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from extensions.agents.tests.system.model_server import (
    OURS,
    USED,
    Desk,
    ModelServer,
    Reply,
    calls,
    chunk,
    says,
    settings,
)
from extensions.agents.tests.system.shared import shared_desk, shared_model
from tests.processes import Service
from tests.system.shared import shared_connection, shared_slack
from tests.system.slack_stand import Stand
from tests.system.worker import ended, worker

pytestmark = pytest.mark.usefixtures("running")
connection, slack, model, desk = shared_connection, shared_slack, shared_model, shared_desk
DOWN = "I cannot answer now: the model does not respond. Please ask again later."
SORRY = "I cannot answer this. The people who run me can see why."
REFUSED = "I cannot answer this: the model, or the filter of its provider, refuses to."
SAID = f"{REFUSED} It says: No, &lt;!here&gt;."
LONG = "My answer ends here: it is longer than the model may write."
FILTERED = "My answer ends here: the filter of the model's provider stopped it."
DONE, OK = b"data: [DONE]\n\n", says("Fine.")
WEATHER = {"name": "weather", "arguments": '{"city": "Ulm"}'}
LARGE = "x" * 60_000
ANSWER = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [], "tools": []}
ANSWER |= {"parallel_tool_calls": True, "tool_choice": "auto"}


@pytest.fixture(scope="module")
async def running(shared_database: str, slack: Stand, model: ModelServer) -> AsyncIterator[Service]:
    async with worker(shared_database, **settings(model, slack, **OURS)) as started:
        yield started


def sent(*deltas: Any, end: str | None = "stop") -> Reply:
    """Return a stream of these deltas, which ends for this reason; ``None``: without one."""
    last = [chunk({}, finish_reason=end), chunk(None, usage=USED)] if end else []
    return Reply(raw=b"".join([*map(chunk, deltas), *last, DONE]))


def called(*functions: Any, ids: str = "ab", end: str | None = "tool_calls") -> Reply:
    """Return a stream that calls functions, each as it is."""
    named = [
        {"index": number, "id": each, "type": "function", "function": function}
        for number, (function, each) in enumerate(zip(functions, ids, strict=False))
    ]
    return sent({"tool_calls": named}, end=end)


def error(**given: Any) -> Reply:
    """Return a stream that says half of the answer, and then an error."""
    return Reply(raw=chunk({"content": "half"}) + f"data: {json.dumps({'error': given})}\n\n".encode())


def item(*events: Any) -> Reply:
    """Return a stream of OpenAI's other protocol, Responses."""
    place = {"item_id": "i", "output_index": 0, "content_index": 0}
    raw = [{"sequence_number": number, **place, **each} for number, each in enumerate(events)]
    return Reply(raw="".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in raw).encode())


def end(status: str, **more: Any) -> dict[str, Any]:
    """Return the last event of such a stream."""
    return {"type": f"response.{status}", "response": {**ANSWER, "status": status, **more}}


def short(reason: str) -> Reply:
    """Return such a stream that ends early."""
    return item(HALF, end("incomplete", incomplete_details={"reason": reason}))


HALF = {"type": "response.output_text.delta", "delta": "Half", "logprobs": []}
REFUSES = {"type": "response.refusal.done", "refusal": "No, <!here>."}
ROWS: dict[str, tuple[list[Any], int, list[str], str]] = {
    # The model refuses, or its answer is not whole: asked once, and people hear so.
    "refusal": ([sent({"refusal": "No, "}, {"refusal": "<!here>."})], 1, [SAID], "stopped"),
    "refusal without a stop": ([sent({"refusal": "No."}, end=None)], 1, [f"{REFUSED} It says: No."], "stopped"),
    "filter": ([sent({"content": "Half"}, end="content_filter")], 1, ["Half", FILTERED], "stopped"),
    "filter at once": ([sent(end="content_filter")], 1, [REFUSED], "stopped"),
    "length": ([sent({"content": "Half"}, end="length")], 1, ["Half", LONG], "stopped"),
    "length at once": ([sent({"reasoning": "hm"}, end="length")], 1, [LONG], "stopped"),
    "length in a call": ([called(WEATHER, end="length")], 1, [LONG], "stopped"),
    # Too large to be kept: asked once.
    "text": ([sent({"content": LARGE})], 1, [SORRY], "more than 50,000 characters"),
    "arguments": ([called({"name": "weather", "arguments": json.dumps({"city": LARGE})})], 1, [SORRY], "50,000"),
    "reasoning": ([sent({"reasoning": LARGE}, {"reasoning": LARGE}, {"content": "Fine."})], 1, [SORRY], "100,000"),
    "long reasoning": ([sent({"reasoning": LARGE}, {"content": "Fine."})], 1, ["Fine."], "completed"),
    "long refusal": ([sent({"refusal": LARGE * 20})], 1, [SORRY], "bytes"),
    # Nothing to show: asked again, three times.
    "spaces": ([sent({"content": " \n"}, {"content": "\u200b\u3164"})] * 4, 4, [SORRY], "cannot be used"),
    "null": ([[*[sent({"content": None})] * 2, OK]], 3, ["Fine."], "completed"),
    "reasoning alone": ([[sent({"reasoning": "hm"}), OK]], 2, ["Fine."], "completed"),
    # Calls that make no sense: the model is told, and goes on.
    "spaces before a call": ([calls(("weather", {"city": "Ulm"}), text=["\n "]), OK], 2, ["Fine."], "completed"),
    "broken arguments": ([called({"name": "weather", "arguments": '{"city'}), OK], 2, ["Fine."], "completed"),
    "no name": ([called({"name": "", "arguments": "{}"}), OK], 2, ["Fine."], "completed"),
    "one id twice": ([called(WEATHER, WEATHER, ids="aa"), OK], 2, ["Fine."], "completed"),
    "calls without calls": ([sent({"content": "Fine."}, end="tool_calls")], 1, ["Fine."], "completed"),
    "unknown reason": ([sent({"content": "Fine."}, end="guardrail")], 1, ["Fine."], "completed"),
    # The server failed: the queue asks again.
    "no stop": ([[sent({"content": "half"}, end=None), OK]], 2, ["Fine."], "completed"),
    "overloaded server": ([[sent({"content": "half"}, end="abort"), OK]], 2, ["Fine."], "completed"),
    "passing error": ([[error(message="busy", code=503), OK]], 2, ["Fine."], "completed"),
    "unclear error": ([[error(message="odd"), OK]], 2, ["Fine."], "completed"),
    "no stream": ([[Reply(raw=b'{"error": "odd"}'), OK]], 2, ["Fine."], "completed"),
    "429": ([[Reply(status=429, headers={"Retry-After": "0"}), OK]], 2, ["Fine."], "completed"),
    "529": ([[Reply(status=529, headers={"Retry-After": "0"}), OK]], 2, ["Fine."], "completed"),
    "always": ([[sent({"content": "half"}, end=None)] * 3], 3, ["half", DOWN], "broke off"),
    # The server refuses in the middle: it would each time.
    "final error": ([error(message="no", code="context_length_exceeded")], 1, ["half", SORRY], "no"),
    "quota": ([error(message="paid", code="insufficient_quota")], 1, ["half", SORRY], "paid"),
    # Responses
    "R answer": ([item(HALF, end("completed"))], 1, ["Half"], "completed"),
    "R refusal": ([item(REFUSES, end("completed"))], 1, [SAID], "stopped"),
    "R length": ([short("max_output_tokens")], 1, ["Half", LONG], "stopped"),
    "R filter": ([short("content_filter")], 1, ["Half", FILTERED], "stopped"),
    "R no stop": ([[item(HALF), item(HALF, end("completed"))]], 2, ["Half"], "completed"),
    "R failed": ([[item(HALF, end("failed")), item(HALF, end("completed"))]], 2, ["Half"], "completed"),
    "R final error": ([item(HALF, end("failed", error={"code": "invalid_prompt", "message": "no"}))], 1, [SORRY], "no"),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
async def test_response_that(desk: Desk, name: str) -> None:
    answers, requests, seen, how = ROWS[name]
    plan, room = name.replace(" ", "-"), desk.slack.room()
    before = set(room.messages)
    if name.startswith("R "):
        identity = await desk.job(plan, *answers, kind="oracle", channel=room.id)
    else:
        identity, asked = await desk.ask(plan, *answers)
    row = await ended(desk.connection, identity)
    said = [each.text for ts, each in room.messages.items() if ts not in before]
    said = said if name.startswith("R ") else [each for each in desk.said(asked) if each != LARGE]
    assert (len(desk.model.asked[plan]), said) == (requests, seen), dict(row)
    result = json.loads(row["result"] or "{}")
    if how == "stopped":
        assert (row["outcome"], result["stopped"]) == ("completed", seen[-1])
        assert result["answer"] == (seen[0] if seen[1:] else None)
    elif how == "completed":
        assert (row["outcome"], result["answer"]) == ("completed", seen[-1])
    else:
        assert (row["outcome"], how in row["reason"]) == ("failed", True), row["reason"]

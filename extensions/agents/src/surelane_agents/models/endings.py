"""How a model's response ended: by itself, or not. What is not whole is not shown as if it were."""

import json
from dataclasses import replace
from typing import Any

import pydantic_ai as ai

from surelane.text import escaped_once
from surelane_agents.errors import ModelRefusedError, StoppedError, UnavailableError
from surelane_agents.reply.shown import is_blank

LONGEST_RESPONSE, LONGEST_REASONING = 50_000, 100_000
"""Characters of one response: of its text and arguments together, and of what only its model reads."""
LARGEST = 1_000_000
"""Bytes of one response, with all that its provider adds, as it is stored."""
LONGEST_REFUSAL = 1_000
"""Characters of a model's refusal that people see."""
FAILED = ("abort", "error", "failed", "insufficient_system_resource")
"""What servers give as the reason if they ended a response themselves. The same request may succeed."""
REFUSES = "I cannot answer this: the model, or the filter of its provider, refuses to."
FILTERED = "My answer ends here: the filter of the model's provider stopped it."
LONG = "My answer ends here: it is longer than the model may write."


class Length:
    """How long a response is, while it comes."""

    def __init__(self) -> None:
        self._said = self._thought = 0

    def add(self, event: ai.ModelResponseStreamEvent) -> str:
        """Count a part, and return its text for people. :class:`ModelRefusedError`: the response is too long."""
        shown = ""
        match getattr(event, "part" if isinstance(event, ai.PartStartEvent) else "delta", None):
            case (
                ai.ThinkingPart(content=text, signature=hidden)
                | ai.ThinkingPartDelta(content_delta=text, signature_delta=hidden)
            ):
                self._thought += len(text or "") + len(hidden or "")
            case ai.TextPart(content=shown) | ai.TextPartDelta(content_delta=shown):
                self._said += len(shown)
            case ai.ToolCallPart(args=given) | ai.ToolCallPartDelta(args_delta=given):
                self._said += len(given if isinstance(given, str) else json.dumps(given or ""))
        if self._said > LONGEST_RESPONSE:
            raise ModelRefusedError(f"a response of the model has more than {LONGEST_RESPONSE:,} characters")
        if self._thought > LONGEST_REASONING:
            raise ModelRefusedError(f"the model's reasoning has more than {LONGEST_REASONING:,} characters")
        return shown


def stored_form(response: ai.ModelResponse) -> Any:
    """Return a response that is whole as the JSON that a step stores. A text that shows nothing is an empty one."""
    reason = (response.provider_details or {}).get("finish_reason")
    if not (reason or response.finish_reason == "content_filter") or response.state != "complete":
        raise UnavailableError("the model's response broke off")
    if response.finish_reason == "error" or reason in FAILED:
        raise UnavailableError(f"the model's server broke the response off: {reason!r:.80}")
    parts = list(response.parts)
    if is_blank(response.text or ""):  # what it may carry besides, its model needs again
        parts = [replace(each, content="") if isinstance(each, ai.TextPart) else each for each in parts]
    # What the models before it in a chain answered may quote a key.
    kept = ai.ModelMessagesTypeAdapter.dump_python(
        [replace(response, parts=parts, failed_attempts=None)], mode="json"
    )
    if (size := len(json.dumps(kept))) > LARGEST:
        raise ModelRefusedError(f"a response of the model has {size:,} bytes; at most {LARGEST:,} are stored")
    return kept


def response_of(stored: Any) -> ai.ModelResponse:
    """Return the response that a step has stored."""
    (response,) = ai.ModelMessagesTypeAdapter.validate_python(stored)
    assert isinstance(response, ai.ModelResponse)  # noqa: S101 - it is what was stored
    return response


def with_own_ids(response: ai.ModelResponse) -> ai.ModelResponse:
    """Return a response whose calls can be told apart, even if its server gave two of them one id."""
    seen, parts = set[str](), list(response.parts)
    for at, part in enumerate(parts):
        if isinstance(part, ai.ToolCallPart):
            own = f"{part.tool_call_id}-{len(seen)}" if part.tool_call_id in seen else part.tool_call_id
            parts[at] = replace(part, tool_call_id=own)
            seen.add(own)
    return replace(response, parts=parts)


def check_end(response: ai.ModelResponse) -> None:
    """Raise :class:`StoppedError` if the model refuses, or its answer is not whole. Its calls are not made then."""
    said = response.text
    match response.finish_reason:
        case "length":
            raise StoppedError(LONG, said)
        case "content_filter" if said:
            raise StoppedError(FILTERED, said)
        case "content_filter":
            refusal = (response.provider_details or {}).get("refusal")
            more = f" It says: {escaped_once(refusal[:LONGEST_REFUSAL])}" if isinstance(refusal, str) else ""
            raise StoppedError(REFUSES + more)

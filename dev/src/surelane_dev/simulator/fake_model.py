"""Stand in for a model's server at ``/model/v1``: OpenAI's chat completions, without a model behind them.

It calls each tool whose name is in the question, says what the tools returned, and else repeats the question. So an
agent can be developed and tested without an account. ``SURELANE_MODEL`` names a real model instead.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from surelane_dev.simulator.simulator_settings import FAKE_MODEL

USAGE = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
MENTION = re.compile(r"<[@!#][^>]*>:?")
EXAMPLES: Mapping[str, Any] = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
"""What a tool gets for a parameter that is no text."""


async def complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    calls = _calls(body)
    text = "" if calls else _text(body["messages"])
    if not body.get("stream"):
        message = {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        return web.json_response(_whole("chat.completion", [choice]) | {"usage": USAGE})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for word in re.findall(r"\s*\S+", text):
        await response.write(_chunk({"role": "assistant", "content": word}))
    for index, call in enumerate(calls):
        await response.write(_chunk({"tool_calls": [{"index": index, **call}]}))
    await response.write(_chunk({}, finish_reason="tool_calls" if calls else "stop"))
    await response.write(_line(_whole("chat.completion.chunk", []) | {"usage": USAGE}) + b"data: [DONE]\n\n")
    return response


def _calls(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a call of each tool that the question names, unless the tools have answered already."""
    messages: Sequence[Mapping[str, Any]] = body["messages"]
    if messages[-1]["role"] != "user":
        return []
    question = _said(messages[-1])
    return [
        {
            "id": f"call-{len(messages)}-{function['name']}",
            "type": "function",
            "function": {"name": function["name"], "arguments": json.dumps(arguments)},
        }
        for tool in body.get("tools") or ()
        for function in [tool["function"]]
        if (arguments := _arguments(function, question)) is not None
    ]


def _arguments(function: Mapping[str, Any], question: str) -> dict[str, Any] | None:
    """Return arguments for a tool, of the words after its name in the question; ``None``: it is not named there."""
    named = re.search(re.escape(function["name"]).replace("_", "[ _]"), question, re.IGNORECASE)
    if named is None:
        return None
    words = question[named.end() :].strip(" ?!.,")
    parameters = function.get("parameters") or {}
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    needed = parameters.get("required") or list(properties)
    return {name: EXAMPLES.get(properties.get(name, {}).get("type", ""), words or name) for name in needed}


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return what the tools have just said, or else the question."""
    question = max(place for place, message in enumerate(messages) if message["role"] == "user")
    later = messages[question:]
    calls = (call for message in later for call in message.get("tool_calls") or ())
    names = {call["id"]: call["function"]["name"] for call in calls}
    answers = (message for message in later if message["role"] == "tool")
    said = [f"{names.get(each['tool_call_id'], 'The tool')} says: {each['content']}" for each in answers]
    return "\n".join(said) or f"You said: {_said(messages[question]) or 'nothing'}"


def _said(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if not isinstance(content, str):
        content = " ".join(str(part.get("text", "")) for part in content)
    return " ".join(MENTION.sub("", content).split())


def _chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return _line(_whole("chat.completion.chunk", [choice]))


def _whole(kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"id": FAKE_MODEL, "object": kind, "created": 1, "model": FAKE_MODEL, "choices": choices}


def _line(data: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()

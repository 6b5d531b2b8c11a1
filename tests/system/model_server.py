"""Stand in for an OpenAI-compatible server: real HTTP, with answers that a test has prepared.

A test names its plan in the question: ``plan:weather``. The plan's answers are taken by the number of responses that
the conversation has since that question. So a request that is repeated gets the same answer, unless the plan has
several for that place: then each request uses one up.
"""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from surelane_service.probes import serving

KEY = "sk-a-key-that-must-not-show"
PLAN = re.compile(r"plan:([\w-]+)")


@dataclass(frozen=True)
class Reply:
    """One answer of the model's server.

    Attributes:
        text: what the model says, in parts that are sent one by one.
        calls: the tools that it calls, with their arguments.
        status: of the response; the body of another one than 200 is an error that quotes the key.
        headers: of the response.
        end: how the stream ends: ``done``, ``cut`` in the middle, or ``closed`` properly but early.
        pause: awaited before the last part.
    """

    text: Sequence[str] = ()
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    end: str = "done"
    pause: asyncio.Event | None = None


def says(*text: str, **more: Any) -> Reply:
    """Return an answer in words."""
    return Reply(text=text, **more)


def calls(*wanted: tuple[str, Mapping[str, Any]], text: Sequence[str] = ()) -> Reply:
    """Return an answer that calls tools."""
    return Reply(text=text, calls=wanted)


class ModelServer:
    """The server's plans, and what was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.plans: dict[str, list[Reply | list[Reply]]] = {}
        self.asked: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        """The bodies of the requests, by plan."""
        self.keys: set[str] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        app.add_routes([web.post("/v1/chat/completions", self._complete)])
        return app

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.keys.add(request.headers.get("Authorization", ""))
        messages = body["messages"]
        questions = [place for place, message in enumerate(messages) if message["role"] == "user"]
        (plan,) = PLAN.findall(str(messages[questions[-1]]["content"]))[:1]
        self.asked[plan].append(body)
        done = sum(message["role"] == "assistant" for message in messages[questions[-1] :])
        planned = self.plans[plan][done]
        reply = planned.pop(0) if isinstance(planned, list) else planned
        if reply.status != 200:
            error = {"message": f"wrong key {KEY}", "code": "any"}
            return web.json_response({"error": error}, status=reply.status, headers=reply.headers)
        if not body.get("stream"):
            if reply.pause is not None:
                await reply.pause.wait()
            return web.json_response(whole(reply, f"{plan}-{done}"))
        return await self._stream(request, reply, f"{plan}-{done}")

    async def _stream(self, request: web.Request, reply: Reply, name: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for place, part in enumerate(reply.text):
            if reply.pause is not None and place == len(reply.text) - 1:
                await reply.pause.wait()
            await response.write(chunk({"role": "assistant", "content": part}))
        for number, (tool, arguments) in enumerate(reply.calls):
            text = json.dumps(arguments)
            first = {"id": f"{name}-{number}", "type": "function"}
            parts: list[dict[str, Any]] = [
                {**first, "function": {"name": tool, "arguments": text[:3]}},
                {"function": {"arguments": text[3:]}},
            ]
            for each in parts:
                await response.write(chunk({"tool_calls": [{"index": number, **each}]}))
        if reply.end == "cut":
            assert request.transport is not None
            request.transport.abort()
        elif reply.end == "done":
            await response.write(chunk({}, finish_reason="tool_calls" if reply.calls else "stop"))
            usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
            await response.write(chunk(None, usage=usage))
            await response.write(b"data: [DONE]\n\n")
        return response


def whole(reply: Reply, name: str) -> dict[str, Any]:
    """Return a response that is not streamed."""
    wanted = [
        {
            "id": f"{name}-{number}",
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps(given)},
        }
        for number, (tool, given) in enumerate(reply.calls)
    ]
    message = {"role": "assistant", "content": "".join(reply.text) or None}
    choice = {
        "index": 0,
        "message": {**message, **({"tool_calls": wanted} if wanted else {})},
        "finish_reason": "tool_calls" if wanted else "stop",
    }
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


def chunk(delta: Any, finish_reason: str | None = None, **more: Any) -> bytes:
    """Return one event of a stream."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish_reason}]
    whole = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return f"data: {json.dumps(whole | more)}\n\n".encode()


@asynccontextmanager
async def model_server() -> AsyncIterator[ModelServer]:
    """Serve a model for the length of the block."""
    server = ModelServer()
    async with serving(server.app(), 0, setting="none", host="127.0.0.1") as port:
        server.url = f"http://127.0.0.1:{port}/v1"
        yield server


def settings(server: ModelServer, **more: str) -> dict[str, str]:
    """Return the settings of a worker with this model."""
    return {
        "SURELANE_MODEL_URL": server.url,
        "SURELANE_MODEL": "local",
        "SURELANE_MODEL_KEY": KEY,
        "OLLAMA_BASE_URL": server.url,
        **more,
    }

"""Stand in for an OpenAI-compatible server: real HTTP, with answers that a test has prepared.

A test names its plan in the question: ``plan:weather``. The plan's answers are taken by the number of responses that
the conversation has since that question. So a request that is repeated gets the same answer, unless the plan has
several for that place: then each request uses one up.
"""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from aiohttp import web

from surelane.calls import Connection
from surelane_dev.simulator.workspace.model import Message
from surelane_service.probes import serving
from tests.system.slack_stand import Stand
from tests.system.worker import enqueue, result_of

HANDLERS = "extensions.agents.tests.system.model_tools:handlers"
TOOLS = "extensions.agents.tests.system.model_tools:tools"
OURS = {"SURELANE_HANDLERS": HANDLERS, "SURELANE_MODEL_TOOLS": TOOLS}
"""The settings of a worker with the agents of ``model_tools``."""
KEY = "sk-a-key-that-must-not-show"
NUMBERS = count()
"""Of the servers of this process."""
USED = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
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
        pause: awaited before the last part of the text, or before the calls.
        raw: the whole body in place of all these, as the server sends it.
    """

    text: Sequence[str] = ()
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    end: str = "done"
    pause: asyncio.Event | None = None
    raw: bytes = b""


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
        self.kept: Callable[[Any], Any] = lambda body: body
        """Returns what is kept of a body."""
        self.keys: set[str] = set()
        self.counts = False
        """Whether requests have a token for 4 characters, and a plan's answers are taken by the number of requests."""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=128 * 2**20)
        paths = "/{server}/v1/chat/completions", "/{server}/v1/responses"
        app.add_routes([web.post(path, self._complete) for path in paths])
        app.add_routes([web.post("/{server}/v1/embeddings", self._embed)])
        return app

    async def _embed(self, request: web.Request) -> web.Response:
        """Answer each text with its length as a vector. The plan ``embeddings`` has what is refused before."""
        body = await request.json()
        self.asked["embeddings"].append(body)
        if planned := self.plans.get("embeddings"):
            return _refused(planned.pop(0))
        lengths = [len(text) for text in body["input"]]
        data = [{"object": "embedding", "index": at, "embedding": [n, 0.5]} for at, n in enumerate(lengths)]
        usage = {"prompt_tokens": sum(lengths), "total_tokens": sum(lengths)}
        return web.json_response({"object": "list", "model": "vectors", "data": data, "usage": usage})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = self.kept(await request.json())
        self.keys.add(request.headers.get("Authorization", ""))
        messages = body.get("messages") or body["input"]
        from surelane_agents.models.compaction import SUM_UP  # noqa: PLC0415 - slow to import, and collected by all

        if str(messages[0]["content"]) == SUM_UP:
            self.asked["summary"].append(body)
            return await self._stream(request, says(f"Summary {len(self.asked['summary'])}."), "summary")
        named = [
            PLAN.findall(str(each["content"])) if each.get("role") == "user" else [] for each in messages
        ]
        asked = max(place for place, plans in enumerate(named) if plans)
        plan = named[asked][0]
        self.asked[plan].append(body)
        done = sum(message.get("role") == "assistant" for message in messages[asked:])
        done = len(self.asked[plan]) - 1 if self.counts else done
        planned = self.plans[plan][done]
        reply = planned.pop(0) if isinstance(planned, list) else planned
        if reply.status != 200:
            return _refused(reply)
        if reply.raw:
            return web.Response(body=reply.raw, content_type="text/event-stream")
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
        if reply.pause is not None and not reply.text:
            await reply.pause.wait()
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
            tokens = len(await request.text()) // 4 if self.counts else USED["prompt_tokens"]
            await response.write(
                chunk(None, usage=USED | {"prompt_tokens": tokens, "total_tokens": tokens + 10})
            )
            await response.write(b"data: [DONE]\n\n")
        return response


def _refused(reply: Any) -> web.Response:
    error = {"message": f"wrong key {KEY}", "code": "any"}
    return web.json_response({"error": error}, status=reply.status, headers=reply.headers)


def whole(reply: Reply, name: str) -> dict[str, Any]:
    """Return a response that is not streamed."""
    wanted = []
    for number, (tool, given) in enumerate(reply.calls):
        function = {"name": tool, "arguments": json.dumps(given)}
        wanted.append({"id": f"{name}-{number}", "type": "function", "function": function})
    message: dict[str, Any] = {"role": "assistant", "content": "".join(reply.text) or None}
    message |= {"tool_calls": wanted} if wanted else {}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if wanted else "stop"}
    about = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    return {**about, "choices": [choice], "usage": USED}


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
        # A later server may get the port. It is no client's whose connections have ended: a process keeps those.
        server.url = f"http://127.0.0.1:{port}/{next(NUMBERS)}/v1"
        yield server


def settings(server: ModelServer, slack: Stand | None = None, /, **more: str) -> dict[str, str]:
    """Return the settings of a worker with this model, and with this Slack."""
    return {
        **({"SLACK_API_URL": slack.api, "SLACK_BOT_TOKEN": "xoxb-any"} if slack else {}),
        "SURELANE_MODEL_URL": server.url,
        "SURELANE_MODEL": "local",
        "SURELANE_MODEL_KEY": KEY,
        "OLLAMA_BASE_URL": server.url,
        "OPENAI_BASE_URL": server.url,
        "OPENAI_API_KEY": KEY,
        **more,
    }


@dataclass(frozen=True)
class Desk:
    """People who ask an agent in a simulated Slack, and the model that answers."""

    slack: Stand
    model: ModelServer
    connection: Connection

    async def ask(self, plan: str, *answers: Reply | list[Reply], **where: Any) -> tuple[int, Message]:
        """Let Ada ask, where the model is to answer so. Return the turn's id, and her message."""
        if answers:
            self.model.plans[plan] = list(answers)
        return await self.slack.mention(f"plan:{plan}", **where)

    async def turn(self, plan: str, *answers: Reply | list[Reply], **where: Any) -> tuple[Any, Message]:
        """Let Ada ask, and wait. Return the turn's result, and her message."""
        identity, asked = await self.ask(plan, *answers, **where)
        return await result_of(self.connection, identity), asked

    async def job(
        self, plan: str, *answers: Reply | list[Reply], kind: str = "agent-turn", **more: Any
    ) -> int:
        """Enqueue a turn. Return its id."""
        if answers:
            self.model.plans[plan] = list(answers)
        return await enqueue(self.connection, kind, {"text": f"plan:{plan}", **more})

    async def result(self, identity: int) -> Any:
        return await result_of(self.connection, identity)

    async def steps(self, identity: int) -> list[str]:
        """Return the names of an event's steps."""
        steps = json.loads(await self.connection.fetchval("select agent.list_steps($1)", identity))
        return [step["name"] for step in steps]

    def said(self, asked: Message) -> list[str]:
        """Return the texts of a thread, without what shows the tools' calls."""
        return [message.text for message in self.slack.replies(asked) if not message.only_tasks]

    def told(self, plan: str) -> list[Any]:
        """Return what tools told the model up to its last request."""
        messages = self.model.asked[plan][-1]["messages"]
        return [each["content"] for each in messages if each["role"] == "tool"]

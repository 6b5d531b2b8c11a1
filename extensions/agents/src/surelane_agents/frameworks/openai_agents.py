"""Run an agent of the OpenAI Agents SDK: ``Runner.run(durable(agent, ctx), "…", session=durable(session, ctx))``."""

from collections.abc import AsyncIterator, Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import agents
from agents.items import TResponseStreamEvent
from agents.memory import OpenAIConversationsSession, OpenAIResponsesCompactionSession
from agents.tool_context import ToolContext
from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from surelane_agents.frameworks.storing import once, once_or_told, streamed
from surelane_worker import Context
from surelane_worker.handling.shapes import StepMismatchError

HOSTED = (
    agents.CodeInterpreterTool,
    agents.FileSearchTool,
    agents.HostedMCPTool,
    agents.ImageGenerationTool,
    agents.WebSearchTool,
)
"""Tools that the model's server runs: their results are parts of its responses."""
KEPT_ELSEWHERE = OpenAIConversationsSession, OpenAIResponsesCompactionSession
"""Sessions whose items their server changes, so they cannot be told from new ones."""
FAILED = "response.incomplete", "response.failed", "response.error", "error"
"""Events that end a stream without a response that can be used."""
EVERYTHING = 2**31 - 1
"""More items than any session has, in place of the limit that it may have by default."""
ASKED = "surelane_asked"
"""How many items a stored response answers."""
RESPONSE = TypeAdapter(agents.ModelResponse)
Wrapped = TypeVar("Wrapped", agents.Agent[Any], agents.Session)


def durable(
    wrapped: Wrapped, ctx: Context, *, name: str | None = None, provider: agents.ModelProvider | None = None
) -> Wrapped:
    """Return a copy of the agent with a step for each response of its model and each call of a function tool.

    Agents that it hands over to are durable, too. A session's copy is read by later attempts as it was, and its items
    are written once.

    Args:
        wrapped, ctx: the agent or the session, and the handler's context.
        name: of the steps: by default ``model`` or ``session``. What runs at once needs names of its own.
        provider: where models come from that an agent has by name; by default the SDK's own provider.

    Raises:
        TypeError: a tool runs on this machine and is no function, or a session's server changes its items.
    """
    if isinstance(wrapped, agents.Agent):
        durables = _Durable(ctx, provider or agents.MultiProvider(), name or "model")
        return durables.agent(wrapped)  # type: ignore[return-value]  # an agent is no session
    if isinstance(wrapped, KEPT_ELSEWHERE):
        raise TypeError(
            f"{type(wrapped).__name__} cannot be durable: use one that keeps items, such as SQLiteSession"
        )
    return _Session(wrapped, ctx, name or "session")


@dataclass
class _Durable:
    """The durable copies of agents that hand over to each other."""

    ctx: Context
    provider: agents.ModelProvider
    name: str
    copies: dict[int, agents.Agent[Any]] = field(default_factory=dict)

    def agent(self, agent: agents.Agent[Any]) -> agents.Agent[Any]:
        if id(agent) in self.copies:
            return self.copies[id(agent)]
        model = agent.model if isinstance(agent.model, agents.Model) else self.provider.get_model(agent.model)
        tools = [self._tool(each) for each in agent.tools]
        made = agent.clone(model=_OpenAIModel(model, self.ctx, self.name), tools=tools)
        self.copies[id(agent)] = made

        made.get_mcp_tools = partial(self._served, agent)  # type: ignore[method-assign]
        made.handoffs = [
            self._handoff(each) if isinstance(each, agents.Handoff) else self.agent(each)
            for each in agent.handoffs
        ]
        return made

    async def _served(
        self, agent: agents.Agent[Any], run_context: agents.RunContextWrapper[Any]
    ) -> list[agents.Tool]:
        return [self._tool(each) for each in await agent.get_mcp_tools(run_context)]

    def _handoff(self, handoff: agents.Handoff[Any, Any]) -> agents.Handoff[Any, Any]:
        async def hand_over(context: agents.RunContextWrapper[Any], arguments: str) -> agents.Agent[Any]:
            return self.agent(await handoff.on_invoke_handoff(context, arguments))

        made = copy(handoff)
        made.on_invoke_handoff = hand_over
        return made

    def _tool(self, tool: agents.Tool) -> agents.Tool:
        if isinstance(tool, HOSTED):
            return tool
        if not isinstance(tool, agents.FunctionTool):
            raise TypeError(f"the calls of tool {tool.name} cannot be stored: use a function")

        name = tool.name if self.name == "model" else f"{self.name} {tool.name}"

        async def call(context: ToolContext[Any], arguments: str) -> Any:
            async def invoke() -> Any:
                result = await tool.on_invoke_tool(context, arguments)
                return to_jsonable_python(result, bytes_mode="base64", fallback=str)

            return await once_or_told(self.ctx, name, invoke, context.tool_call_id, str)

        made = copy(tool)
        made.on_invoke_tool = call
        return made


class _OpenAIModel(agents.Model):
    """A model whose responses are steps. It is no dataclass, because the SDK copies those deeply."""

    def __init__(self, wrapped: agents.Model, ctx: Context, name: str) -> None:
        self.wrapped, self.ctx, self.name = wrapped, ctx, name

    async def get_response(self, *given: Any, **named: Any) -> agents.ModelResponse:
        asked = named["input"] if "input" in named else given[1]

        async def ask() -> Any:
            response = await self.wrapped.get_response(*given, **named)
            # By their Python names, such as async_, its fields would come back as others.
            dumped = RESPONSE.dump_python(response, mode="json", by_alias=True, exclude_unset=True)
            return dumped | {ASKED: len(asked)}

        return RESPONSE.validate_python(_checked(await once(self.ctx, self.name, ask), asked))

    async def stream_response(self, *given: Any, **named: Any) -> AsyncIterator[TResponseStreamEvent]:
        asked = named["input"] if "input" in named else given[1]

        async def read(add: Callable[[Any], None]) -> Any:
            async for event in self.wrapped.stream_response(*given, **named):
                if event.type in FAILED:
                    raise agents.ModelBehaviorError(f"the model's response ended: {event.type}")
                if isinstance(event, ResponseCompletedEvent):
                    return event.to_dict(mode="json", warnings=False) | {ASKED: len(asked)}
                add(event)
            raise agents.ModelBehaviorError("the model's response broke off")

        async with streamed(self.ctx, self.name, read) as (events, step):
            event = None
            async for event in events:
                yield event
            done = ResponseCompletedEvent.construct(**_checked(await step, asked))
            for said in _said(done.response) if event is None else ():
                yield said
            yield done


def _checked(stored: Any, asked: Any) -> Any:
    """Return a stored response. Refuse a question that has the first attempt's twice, as of a plain session."""
    count = stored.pop(ASKED, None)
    if count and isinstance(asked, list) and len(asked) > count and asked[count - 1] == asked[-1]:
        raise StepMismatchError(
            "the session has this run's items from an earlier attempt: give it as durable(session, ctx)"
        )
    return stored


def _said(response: Response) -> Iterator[TResponseStreamEvent]:
    """Return a stored response's texts as events, each at once."""
    for index, item in enumerate(response.output):
        for place, part in enumerate(item.content if item.type == "message" else ()):
            if part.type == "output_text":
                where: Any = {"item_id": item.id, "output_index": index, "content_index": place}
                yield ResponseTextDeltaEvent.construct(
                    type="response.output_text.delta", delta=part.text, **where
                )


class _Session(agents.SessionABC):
    """A session that is read as it was in the first attempt, and written once."""

    def __init__(self, wrapped: agents.Session, ctx: Context, name: str) -> None:
        self.session_id, self.session_settings = wrapped.session_id, wrapped.session_settings
        self._wrapped, self._ctx, self._name = wrapped, ctx, name
        self._before: list[Any] | None = None
        self._own: list[Any] = []

    async def get_items(self, limit: int | None = None) -> list[Any]:
        items = [*await self._found(), *self._own]
        settings = self.session_settings
        limit = settings.limit if limit is None and settings is not None else limit
        return items if limit is None else items[max(len(items) - limit, 0) :]

    async def add_items(self, items: list[Any]) -> None:
        begin, new = len(await self._found()) + len(self._own), to_jsonable_python(items)

        async def add() -> None:
            """A worker may have died between the session's write and the step's."""
            there = (await self._all())[begin:]
            if not any(there[at : at + len(new)] == new for at in range(len(there))):
                await self._wrapped.add_items(items)

        await once(self._ctx, self._name, add)
        self._own += new

    async def pop_item(self) -> Any:
        raise NotImplementedError("a durable session only grows: pop from the session itself, in a step")

    async def clear_session(self) -> None:
        raise NotImplementedError("a durable session only grows: clear the session itself, in a step")

    async def _all(self) -> list[Any]:
        return list(await self._wrapped.get_items(limit=EVERYTHING))

    async def _found(self) -> list[Any]:
        """Return the items of before the handler's first attempt."""
        if self._before is None:
            count = await once(self._ctx, self._name, self._count)
            self._before = (await self._all())[:count]
        return self._before

    async def _count(self) -> int:
        return len(await self._all())

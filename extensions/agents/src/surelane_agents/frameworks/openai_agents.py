"""Run an agent of the OpenAI Agents SDK: ``Runner.run(durable(agent, ctx), "…", session=durable(session, ctx))``."""

from copy import copy
from dataclasses import dataclass, field
from typing import Any, overload

import agents
from agents.memory import OpenAIConversationsSession, OpenAIResponsesCompactionSession
from agents.tool_context import ToolContext
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from surelane_agents.frameworks.storing import once, once_or_told
from surelane_worker.handling.context import Context

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
EVERYTHING = 2**31 - 1
"""More items than any session has, in place of the limit that it may have by default."""
RESPONSE = TypeAdapter(agents.ModelResponse)


@overload
def durable(
    wrapped: agents.Agent[Any],
    ctx: Context,
    *,
    name: str = "model",
    provider: agents.ModelProvider | None = None,
) -> agents.Agent[Any]: ...
@overload
def durable(wrapped: agents.Session, ctx: Context, *, name: str = "session") -> agents.Session: ...
def durable(
    wrapped: agents.Agent[Any] | agents.Session,
    ctx: Context,
    *,
    name: str | None = None,
    provider: agents.ModelProvider | None = None,
) -> agents.Agent[Any] | agents.Session:
    """Return a copy of the agent with a step for each response of its model and each call of a function tool.

    Agents that it hands over to are durable, too. An agent used as a tool is one step. Guardrails and hooks run again
    in each attempt. Tools should return JSON. ``Runner.run_streamed`` is not supported, and neither is a model in
    ``RunConfig``, which takes the place of the durable one.

    Of a session: return one that later attempts read as it was, and whose items they do not write again.

    Args:
        ctx: the handler's context.
        name: of the steps. Agents that run at once need names of their own, and so do sessions.
        provider: where models come from that an agent has by name; by default the SDK's own provider.

    Raises:
        TypeError: the agent has MCP servers, or a tool that runs on this machine and is no function tool; or the
            session's items are changed by its server.
    """
    if isinstance(wrapped, agents.Agent):
        return _Durable(ctx, provider or agents.MultiProvider(), name or "model").agent(wrapped)
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
        if agent.mcp_servers:
            raise TypeError(f"agent {agent.name} has MCP servers, whose calls cannot be stored")
        model = agent.model if isinstance(agent.model, agents.Model) else self.provider.get_model(agent.model)
        tools = [self._tool(each) for each in agent.tools]
        made = agent.clone(model=_OpenAIModel(model, self.ctx, self.name), tools=tools)
        self.copies[id(agent)] = made
        made.handoffs = [
            self._handoff(each) if isinstance(each, agents.Handoff) else self.agent(each)
            for each in agent.handoffs
        ]
        return made

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
        async def ask() -> Any:
            return _dumped(await self.wrapped.get_response(*given, **named))

        return RESPONSE.validate_python(await once(self.ctx, self.name, ask))

    def stream_response(self, *given: Any, **named: Any) -> Any:
        raise NotImplementedError("a stream cannot be stored as a step: use Runner.run")


def _dumped(response: agents.ModelResponse) -> Any:
    """Return a response as JSON. By their Python names, such as ``async_``, its fields would come back as others."""
    return RESPONSE.dump_python(response, mode="json", by_alias=True, exclude_unset=True)


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

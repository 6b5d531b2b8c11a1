"""Run an agent of the OpenAI Agents SDK: ``Runner.run(durable(agent, ctx), "…")``."""

from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import agents
from agents.tool_context import ToolContext
from pydantic import TypeAdapter

from surelane_worker.handling.context import Context

HOSTED = (
    agents.CodeInterpreterTool,
    agents.FileSearchTool,
    agents.HostedMCPTool,
    agents.ImageGenerationTool,
    agents.WebSearchTool,
)
"""Tools that the model's server runs: their results are parts of its responses."""
RESPONSE = TypeAdapter(agents.ModelResponse)


def durable(
    agent: agents.Agent[Any], ctx: Context, *, provider: agents.ModelProvider | None = None
) -> agents.Agent[Any]:
    """Return a copy of the agent with a step for each response of its model and each call of a function tool.

    Agents that it hands over to are durable, too. An agent used as a tool is one step. Guardrails, hooks and sessions
    run again in each attempt. Tools must return JSON. ``Runner.run_streamed`` is not supported.

    Args:
        ctx: the handler's context.
        provider: where models come from that an agent has by name; by default the SDK's own provider.

    Raises:
        TypeError: the agent has MCP servers, or a tool that runs on this machine and is no function tool.
    """
    return _Durable(ctx, provider or agents.MultiProvider()).agent(agent)


@dataclass
class _Durable:
    """The durable copies of agents that hand over to each other."""

    ctx: Context
    provider: agents.ModelProvider
    copies: dict[int, agents.Agent[Any]] = field(default_factory=dict)

    def agent(self, agent: agents.Agent[Any]) -> agents.Agent[Any]:
        if id(agent) in self.copies:
            return self.copies[id(agent)]
        if agent.mcp_servers:
            raise TypeError(f"agent {agent.name} has MCP servers, whose calls cannot be stored")
        model = agent.model if isinstance(agent.model, agents.Model) else self.provider.get_model(agent.model)
        tools = [self._tool(each) for each in agent.tools]
        made = agent.clone(model=_Responses(model, self.ctx), tools=tools)
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

        async def call(context: ToolContext[Any], arguments: str) -> Any:
            function = partial(tool.on_invoke_tool, context, arguments)
            return await self.ctx.step(tool.name, function, key=context.tool_call_id)

        made = copy(tool)
        made.on_invoke_tool = call
        return made


class _Responses(agents.Model):
    """A model whose responses are steps. It is no dataclass, because the SDK copies those deeply."""

    def __init__(self, wrapped: agents.Model, ctx: Context) -> None:
        self.wrapped, self.ctx = wrapped, ctx

    async def get_response(self, *given: Any, **named: Any) -> agents.ModelResponse:
        async def ask() -> Any:
            return RESPONSE.dump_python(await self.wrapped.get_response(*given, **named), mode="json")

        return RESPONSE.validate_python(await self.ctx.step("model", ask))

    def stream_response(self, *given: Any, **named: Any) -> Any:
        raise NotImplementedError("a stream cannot be stored as a step: use Runner.run")

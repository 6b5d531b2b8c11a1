"""Run an agent of the OpenAI Agents SDK: ``Runner.run(durable(agent, ctx), "…")``."""

from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agents import (
    Agent,
    CodeInterpreterTool,
    FileSearchTool,
    FunctionTool,
    Handoff,
    HostedMCPTool,
    ImageGenerationTool,
    Model,
    ModelProvider,
    ModelResponse,
    MultiProvider,
    RunContextWrapper,
    Tool,
    WebSearchTool,
)
from agents.tool_context import ToolContext
from pydantic import TypeAdapter

from surelane_worker.handling.context import Context

HOSTED = (CodeInterpreterTool, FileSearchTool, HostedMCPTool, ImageGenerationTool, WebSearchTool)
"""Tools that the model's server runs: their results are parts of its responses."""
RESPONSE = TypeAdapter(ModelResponse)


def durable(agent: Agent[Any], ctx: Context, *, provider: ModelProvider | None = None) -> Agent[Any]:
    """Return the agent with a step for each response of its model and each call of a function tool.

    Agents that it hands over to are durable, too. An agent used as a tool is one step. Guardrails, hooks and sessions
    run again in each attempt. Tools must return JSON. ``Runner.run_streamed`` is not supported.

    Args:
        agent: the agent; it is not changed.
        ctx: the handler's context.
        provider: where models come from that an agent has by name; by default the SDK's own provider.

    Raises:
        TypeError: the agent has MCP servers, or a tool that runs on this machine and is no function tool.
    """
    return _Durable(ctx, provider or MultiProvider()).agent(agent)


@dataclass
class _Durable:
    """The durable copies of agents that hand over to each other."""

    ctx: Context
    provider: ModelProvider
    agents: dict[int, Agent[Any]] = field(default_factory=dict)

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        if id(agent) in self.agents:
            return self.agents[id(agent)]
        if agent.mcp_servers:
            raise TypeError(
                f"agent {agent.name} has MCP servers, whose calls cannot be stored: use functions"
            )
        model = agent.model if isinstance(agent.model, Model) else self.provider.get_model(agent.model)
        made = agent.clone(
            model=_Responses(model, self.ctx), tools=[self._tool(each) for each in agent.tools]
        )
        self.agents[id(agent)] = made
        made.handoffs = [
            self._handoff(each) if isinstance(each, Handoff) else self.agent(each) for each in agent.handoffs
        ]
        return made

    def _handoff(self, handoff: Handoff[Any, Any]) -> Handoff[Any, Any]:
        async def hand_over(context: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
            return self.agent(await handoff.on_invoke_handoff(context, arguments))

        made = copy(handoff)
        made.on_invoke_handoff = hand_over
        return made

    def _tool(self, tool: Tool) -> Tool:
        if isinstance(tool, HOSTED):
            return tool
        if not isinstance(tool, FunctionTool):
            raise TypeError(f"the calls of tool {tool.name} cannot be stored: use a function")

        async def call(context: ToolContext[Any], arguments: str) -> Any:  # noqa: ANN401 - the tool's result
            function = partial(tool.on_invoke_tool, context, arguments)
            return await self.ctx.step(tool.name, function, key=context.tool_call_id)

        made = copy(tool)
        made.on_invoke_tool = call
        return made


@dataclass(eq=False)
class _Responses(Model):
    """A model whose responses are steps."""

    wrapped: Model
    ctx: Context

    async def get_response(self, *given: Any, **named: Any) -> ModelResponse:  # noqa: ANN401 - the wrapped model's
        async def ask() -> Any:  # noqa: ANN401 - JSON
            return RESPONSE.dump_python(await self.wrapped.get_response(*given, **named), mode="json")

        return RESPONSE.validate_python(await self.ctx.step("model", ask))

    def stream_response(self, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - the wrapped model's
        raise NotImplementedError("a stream cannot be stored as a step: use Runner.run")

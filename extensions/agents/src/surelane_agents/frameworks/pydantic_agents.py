"""Run an agent of pydantic-ai: ``with durable(agent, ctx) as agent: await agent.run("…")``."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Self

from pydantic import TypeAdapter
from pydantic_ai import Agent, ApprovalRequired, CallDeferred, ModelRetry, RunContext, ToolFailed, ToolReturn
from pydantic_ai.agent import WrapperAgent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.run import AgentRun
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from surelane_agents.frameworks.storing import once, once_or_told
from surelane_service.lifecycle import outside
from surelane_worker.handling.context import Context

RETURN: TypeAdapter[ToolReturn[Any]] = TypeAdapter(ToolReturn)
"""Reads and writes what tools return, with the images in it."""


@contextmanager
def durable(agent: Agent[Any, Any], ctx: Context, *, name: str = "model") -> Iterator[WrapperAgent[Any, Any]]:
    """Store each response of the agent's model and each call of its tools as a step, within the block.

    The block gets the agent in a form that also stores the calls of toolsets that a run is given, as
    ``agent.run("…", toolsets=[…])``. A run of the agent itself leaves these out. Tools' results go through JSON, as
    ``ToolReturn`` does. Output validators and history processors run again in each attempt. ``agent.run_stream`` is not
    supported.

    Args:
        agent, ctx: the agent, and the handler's context.
        name: of the steps. Agents that run at once need names of their own.

    Raises:
        TypeError: the agent has no model.
    """
    if agent.model is None:
        raise TypeError("a durable agent needs a model of its own: Agent(model, …)")
    toolsets = [_PydanticTools(each, ctx, name) for each in agent.toolsets]
    model = _PydanticModel(infer_model(agent.model), ctx, name)
    with agent.override(model=model, toolsets=toolsets, tools=[]):
        yield _Given(agent, toolsets, ctx, name)


class _Given(WrapperAgent[Any, Any]):
    """An agent whose runs may be given toolsets."""

    def __init__(
        self, wrapped: Agent[Any, Any], own: Sequence[AbstractToolset[Any]], ctx: Context, name: str
    ) -> None:
        super().__init__(wrapped)
        self._own, self._ctx, self._name = own, ctx, name

    @asynccontextmanager
    async def iter(
        self, *given: Any, toolsets: Sequence[AbstractToolset[Any]] | None = None, **named: Any
    ) -> AsyncIterator[AgentRun[Any, Any]]:
        more = [_PydanticTools(each, self._ctx, self._name) for each in toolsets or ()]
        with self.wrapped.override(toolsets=[*self._own, *more], tools=[]):
            async with self.wrapped.iter(*given, **named) as run:
                yield run


class _PydanticModel(WrapperModel):
    """A model whose responses are steps."""

    def __init__(self, wrapped: Model, ctx: Context, name: str) -> None:
        super().__init__(wrapped)
        self._ctx, self._name = ctx, name

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async def ask() -> Any:
            response = await self.wrapped.request(messages, model_settings, model_request_parameters)
            return ModelMessagesTypeAdapter.dump_python([response], mode="json")

        (response,) = ModelMessagesTypeAdapter.validate_python(await once(self._ctx, self._name, ask))
        assert isinstance(response, ModelResponse)  # noqa: S101 - it is what ask returned
        return response

    def request_stream(self, *given: Any, **named: Any) -> Any:
        raise NotImplementedError("a stream cannot be stored as a step: use agent.run")


@dataclass
class _PydanticTools(WrapperToolset[Any]):
    """Tools whose calls are steps."""

    ctx: Context
    step: str

    async def __aenter__(self) -> Self:
        with outside():
            return await super().__aenter__()

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        async def call() -> dict[str, Any]:
            try:
                result = await self.wrapped.call_tool(name, tool_args, ctx, tool)
            except ModelRetry as retry:
                return {"retry": retry.message}
            except ToolFailed as failed:
                return {"failed": failed.message}
            except ApprovalRequired as asked:
                return {"approval": asked.metadata}
            except CallDeferred as deferred:
                return {"deferred": deferred.metadata, "kind": deferred.kind}
            given = isinstance(result, ToolReturn)
            whole = result if given else ToolReturn(result)
            return {"returned": RETURN.dump_python(whole, mode="json", fallback=str), "given": given}

        step = name if self.step == "model" else f"{self.step} {name}"
        done = await once_or_told(self.ctx, step, call, ctx.tool_call_id, lambda why: {"failed": why})
        return _outcome(done)


def _outcome(done: dict[str, Any]) -> Any:
    """Return or raise what a stored call did."""
    match done:
        case {"returned": stored, "given": given}:
            whole = RETURN.validate_python(stored)
            return whole if given else whole.return_value
        case {"retry": message}:
            raise ModelRetry(message)
        case {"failed": message}:
            raise ToolFailed(message)
        case {"approval": metadata}:
            raise ApprovalRequired(metadata)
        case {"deferred": metadata, "kind": kind}:
            raise CallDeferred(metadata, kind=kind)
    return done["result"]  # as the release before stored it

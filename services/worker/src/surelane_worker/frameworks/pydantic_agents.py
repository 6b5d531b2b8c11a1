"""Run an agent of pydantic-ai: ``with durable(agent, ctx): await agent.run("…")``."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset
from pydantic_core import to_jsonable_python

from surelane_service.lifecycle import outside
from surelane_worker.handling.context import Context


@contextmanager
def durable(agent: Agent[Any, Any], ctx: Context) -> Iterator[None]:
    """Store each response of the agent's model and each call of its tools as a step, within the block.

    Tools' results go through JSON. Output validators and history processors run again in each attempt.
    ``agent.run_stream`` is not supported.

    Raises:
        TypeError: the agent has no model.
    """
    if agent.model is None:
        raise TypeError("a durable agent needs a model of its own: Agent(model, …)")
    toolsets = [_Calls(each, ctx) for each in agent.toolsets]
    with agent.override(model=_Responses(infer_model(agent.model), ctx), toolsets=toolsets, tools=[]):
        yield


class _Responses(WrapperModel):
    """A model whose responses are steps."""

    def __init__(self, wrapped: Model, ctx: Context) -> None:
        super().__init__(wrapped)
        self._ctx = ctx

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async def ask() -> Any:
            response = await self.wrapped.request(messages, model_settings, model_request_parameters)
            return ModelMessagesTypeAdapter.dump_python([response], mode="json")

        (response,) = ModelMessagesTypeAdapter.validate_python(await self._ctx.step("model", ask))
        assert isinstance(response, ModelResponse)  # noqa: S101 - it is what ask returned
        return response

    def request_stream(self, *given: Any, **named: Any) -> Any:
        raise NotImplementedError("a stream cannot be stored as a step: use agent.run")


@dataclass
class _Calls(WrapperToolset[Any]):
    """Tools whose calls are steps."""

    ctx: Context

    async def __aenter__(self) -> Self:
        with outside():
            return await super().__aenter__()

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        async def call() -> dict[str, Any]:
            try:
                result = await self.wrapped.call_tool(name, tool_args, ctx, tool)
                return {"result": to_jsonable_python(result)}
            except ModelRetry as retry:
                return {"retry": retry.message}

        done = await self.ctx.step(name, call, key=ctx.tool_call_id)
        if "retry" in done:
            raise ModelRetry(done["retry"])
        return done["result"]

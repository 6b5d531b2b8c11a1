"""Run an agent of pydantic-ai: ``await agent.run("…", capabilities=[durable(ctx)])``."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

import pydantic_ai as ai
from pydantic import TypeAdapter
from pydantic_ai import AbstractToolset, ModelSettings, ToolsetTool, WrapperToolset, models
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.wrapper import WrapperModel

from surelane_agents.frameworks.storing import once, once_or_told, streamed
from surelane_agents.models.endings import response_of
from surelane_service.lifecycle import outside
from surelane_worker import Context

RETURN: TypeAdapter[ai.ToolReturn[Any]] = TypeAdapter(ai.ToolReturn)
"""Reads and writes what tools return, with the images in it."""
RAISED = {
    each.__name__: each for each in (ai.ModelRetry, ai.ToolFailed, ai.ApprovalRequired, ai.CallDeferred)
}
"""What tools raise to tell pydantic-ai something. It is stored by its name and its arguments."""


@dataclass
class _DurableRun(AbstractCapability[Any]):
    """What makes steps of a run's responses and of its calls of tools."""

    ctx: Context
    name: str

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return _PydanticTools(toolset, self.ctx, self.name)

    def get_wrapper_model(self, model: models.Model) -> models.Model:
        return _PydanticModel(model, self.ctx, self.name)


def durable(ctx: Context, *, name: str = "model") -> AbstractCapability[Any]:
    """Return the capability that stores each response of a run's model and each call of its tools as a step.

    Tools' results go through JSON, as ``ToolReturn`` does. ``name``: of the steps. Agents that run at once need names
    of their own.
    """
    return _DurableRun(ctx, name)


class _PydanticModel(WrapperModel):
    """A model whose responses are steps."""

    def __init__(self, wrapped: models.Model, ctx: Context, name: str) -> None:
        super().__init__(wrapped)
        self._ctx, self._name = ctx, name

    async def request(self, *given: Any, **named: Any) -> ai.ModelResponse:
        async def ask() -> Any:
            response = await self.wrapped.request(*given, **named)
            return ai.ModelMessagesTypeAdapter.dump_python([response], mode="json")

        return response_of(await once(self._ctx, self._name, ask))

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ai.ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: models.ModelRequestParameters,
        run_context: ai.RunContext[Any] | None = None,
    ) -> AsyncGenerator[models.StreamedResponse]:
        given = messages, model_settings, model_request_parameters, run_context

        async def read(add: Callable[[Any], None]) -> Any:
            async with self.wrapped.request_stream(*given) as stream:
                async for event in stream:
                    add((event, stream.get()))
                return ai.ModelMessagesTypeAdapter.dump_python([stream.get()], mode="json")

        async with streamed(self._ctx, self._name, read) as (events, step):
            if (first := await anext(events, None)) is not None:
                yield _LiveResponse(first, events, step, model_request_parameters)
            else:
                stored, more = response_of(await step), model_request_parameters
                yield models.CompletedStreamedResponse(
                    stored, model_request_parameters=more, replay_events=True
                )


class _LiveResponse(models.CompletedStreamedResponse):
    """A response whose events come while a step reads it."""

    def __init__(self, first: Any, rest: Any, step: Any, parameters: models.ModelRequestParameters) -> None:
        self._first, self._rest, self._step = first, rest, step
        super().__init__(first[1], model_request_parameters=parameters)

    def __aiter__(self) -> AsyncIterator[ai.ModelResponseStreamEvent]:
        if self._event_iterator is None:
            self._event_iterator = self._events()
        return self._event_iterator

    async def _events(self) -> AsyncIterator[ai.ModelResponseStreamEvent]:
        yield self._seen(*self._first)
        async for each in self._rest:
            yield self._seen(*each)
        self.response = response_of(await self._step)

    def _seen(
        self, event: ai.ModelResponseStreamEvent, response: ai.ModelResponse
    ) -> ai.ModelResponseStreamEvent:
        self.response = response
        if isinstance(event, ai.FinalResultEvent):
            self.final_result_event = event
        return event


@dataclass
class _PydanticTools(WrapperToolset[Any]):
    """Tools whose calls are steps."""

    ctx: Context
    step: str

    async def __aenter__(self) -> Self:
        with outside():
            return await super().__aenter__()

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: ai.RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        async def call() -> dict[str, Any]:
            try:
                result = await self.wrapped.call_tool(name, tool_args, ctx, tool)
            except tuple(RAISED.values()) as error:
                return _raised(error)
            whole = result if isinstance(result, ai.ToolReturn) else ai.ToolReturn(result)
            stored = RETURN.dump_python(whole, mode="json", fallback=str)
            return {"returned": stored, "whole": whole is result}

        step = name if self.step == "model" else f"{self.step} {name}"

        def untold(why: str) -> dict[str, Any]:
            return _raised(ai.ToolFailed(why))

        done = await once_or_told(self.ctx, step, call, ctx.tool_call_id, untold)
        if "raised" in done:
            raise RAISED[done["raised"]](**done["with"])
        whole = RETURN.validate_python(done["returned"])
        return whole if done["whole"] else whole.return_value


def _raised(error: Exception) -> dict[str, Any]:
    sort = next(name for name, each in RAISED.items() if isinstance(error, each))
    return {"raised": sort, "with": vars(error)}

"""Run a graph of LangGraph: build it in the handler, of ``durable`` models and tools.

No checkpointer is needed: an attempt runs the graph from its beginning, with the stored responses and results.
"""

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, ToolMessage, message_to_dict, messages_from_dict
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableBinding
from langchain_core.tools import BaseTool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphBubbleUp

from surelane_agents.frameworks.storing import once, once_or_told, streamed
from surelane_worker import Context

SERDE = JsonPlusSerializer()
Wrapped = TypeVar("Wrapped", BaseChatModel, BaseTool)


def durable(wrapped: Wrapped, ctx: Context, *, name: str | None = None) -> Wrapped:
    """Return the model with a step for each response, or the tool with a step for each call.

    ``name``: of the steps: by default ``model``, or the tool's name. Models that are asked at once need names of their
    own, and so do tools that are called at once without the id of a call.
    """
    if isinstance(wrapped, BaseTool):
        same = {each: getattr(wrapped, each) for each in ("description", "args_schema", "return_direct")}
        return _GraphTool(name=wrapped.name, **same, wrapped=wrapped, ctx=ctx, step=name or wrapped.name)
    return _GraphModel(wrapped=wrapped, ctx=ctx, step=name or "model")


class _GraphModel(BaseChatModel):
    """A model whose responses are steps."""

    wrapped: Any
    ctx: Any
    step: str

    @property
    def _llm_type(self) -> str:
        return "durable"

    def bind_tools(self, tools: Sequence[Any], **named: Any) -> Runnable[Any, Any]:
        bound = self.wrapped.bind_tools(tools, **named)
        if not isinstance(bound, RunnableBinding):
            raise TypeError(f"{type(self.wrapped).__name__} binds tools in a way that cannot be stored")
        return self.bind(**bound.kwargs)

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError("a durable model is asynchronous: use ainvoke")

    async def _agenerate(self, messages: Any, stop: Any = None, *_: Any, **named: Any) -> ChatResult:
        async def ask() -> dict[str, Any]:
            return message_to_dict(await self.wrapped.ainvoke(messages, stop=stop, **named))

        (message,) = messages_from_dict([await once(self.ctx, self.step, ask)])
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(
        self, messages: Any, stop: Any = None, *_: Any, **named: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        named.pop("run_manager", None)  # which hears the parts from this model

        async def read(add: Callable[[Any], None]) -> dict[str, Any]:
            whole = AIMessageChunk(content="")
            # The handlers of the run do not hear the parts from the wrapped model, too.
            async for part in self.wrapped.astream(messages, {"callbacks": []}, stop=stop, **named):
                whole = part if not whole.id else whole + part
                add(part.model_copy())
            return message_to_dict(whole)

        async with streamed(self.ctx, self.step, read) as (parts, step):
            part = None
            async for part in parts:
                yield ChatGenerationChunk(message=part)
            if part is None:
                (message,) = messages_from_dict([await step])
                assert isinstance(message, AIMessageChunk)  # noqa: S101 - it is what read returned
                yield ChatGenerationChunk(message=message)


class _GraphTool(BaseTool):
    """A tool whose calls are steps."""

    wrapped: Any
    ctx: Any
    step: str

    def _run(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("a durable tool is asynchronous: use ainvoke")

    async def ainvoke(self, input: Any, config: Any = None, **named: Any) -> Any:  # noqa: A002 - langchain's
        place = input.get("id") if isinstance(input, dict) and input.get("type") == "tool_call" else None

        async def call() -> dict[str, Any]:
            try:
                return _packed(await self.wrapped.ainvoke(input, config, **named))
            except GraphBubbleUp as error:
                raise TypeError(
                    f"tool {self.name} ends its node by {type(error).__name__}, which cannot be stored: interrupt in a"
                    " node, or ask with ctx.ask in the handler"
                ) from error

        def told(why: str) -> dict[str, Any]:
            return _packed(why if place is None else ToolMessage(why, tool_call_id=place, name=self.name))

        return _unpacked(await once_or_told(self.ctx, self.step, call, place, told))


def _packed(result: Any) -> dict[str, Any]:
    """Return a tool's result as JSON: a message as such, anything else as LangGraph's checkpoints have it."""
    if isinstance(result, ToolMessage) and result.artifact is None:
        return message_to_dict(result)
    sort, data = SERDE.dumps_typed(result)
    return {"sort": sort, "packed": b64encode(data).decode()}


def _unpacked(stored: dict[str, Any]) -> Any:
    if "packed" in stored:
        return SERDE.loads_typed((stored["sort"], b64decode(stored["packed"])))
    (message,) = messages_from_dict([stored])
    return message

"""Run a graph of LangGraph: build it in the handler, of ``durable`` models and tools.

No checkpointer is needed: an attempt runs the graph from its beginning, with the stored responses and results.
"""

from collections.abc import Sequence
from typing import Any, overload

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, ToolMessage, message_to_dict, messages_from_dict
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableBinding
from langchain_core.tools import BaseTool

from surelane_worker.handling.context import Context


@overload
def durable(wrapped: BaseChatModel, ctx: Context, *, name: str = "model") -> BaseChatModel: ...
@overload
def durable(wrapped: BaseTool, ctx: Context) -> BaseTool: ...
def durable(
    wrapped: BaseChatModel | BaseTool, ctx: Context, *, name: str = "model"
) -> BaseChatModel | BaseTool:
    """Return the model with a step for each response, or the tool with a step for each call.

    Other code of the graph runs again in each attempt. A tool returns a message; a ``Command`` cannot be stored.

    Args:
        ctx: the handler's context.
        name: of the model's steps. Models that are asked at once need names of their own.
    """
    if isinstance(wrapped, BaseTool):
        same = {each: getattr(wrapped, each) for each in ("description", "args_schema", "return_direct")}
        return _Calls(name=wrapped.name, **same, wrapped=wrapped, ctx=ctx)
    return _Responses(wrapped=wrapped, ctx=ctx, step=name)


class _Responses(BaseChatModel):
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

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,  # noqa: ARG002 - langchain's
        **named: Any,
    ) -> ChatResult:
        async def ask() -> dict[str, Any]:
            return message_to_dict(await self.wrapped.ainvoke(messages, stop=stop, **named))

        (message,) = messages_from_dict([await self.ctx.step(self.step, ask)])
        return ChatResult(generations=[ChatGeneration(message=message)])


class _Calls(BaseTool):
    """A tool whose calls are steps."""

    wrapped: Any
    ctx: Any

    def _run(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("a durable tool is asynchronous: use ainvoke")

    async def ainvoke(self, input: Any, config: Any = None, **named: Any) -> Any:  # noqa: A002 - langchain's
        async def call() -> dict[str, Any]:
            result = await self.wrapped.ainvoke(input, config, **named)
            if not isinstance(result, ToolMessage):
                raise TypeError(
                    f"tool {self.name} returned {type(result).__name__}: only a message can be stored"
                )
            return message_to_dict(result)

        (message,) = messages_from_dict([await self.ctx.step(self.name, call, key=input["id"])])
        return message

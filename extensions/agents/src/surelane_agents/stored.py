"""The model and the tools that pydantic-ai gets: their responses and calls are steps of a turn."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pydantic_ai as ai
from pydantic_ai.models import Model
from pydantic_ai.models.wrapper import WrapperModel

from surelane_agents.errors import ModelRefusedError, UnavailableError
from surelane_service.lifecycle import outside

if TYPE_CHECKING:
    from surelane_agents.run import AgentTurn


class StoredResponses(WrapperModel):
    """A model whose responses are steps."""

    def __init__(self, wrapped: Model, run: "AgentTurn") -> None:
        super().__init__(wrapped)
        self._run = run

    async def request(self, *given: Any) -> ai.ModelResponse:  # noqa: ANN401 - passed on
        return await self._run.respond(partial(self._run.ask, self.wrapped, *given))


@dataclass
class StoredCalls(ai.WrapperToolset[Any]):
    """Tools whose calls are steps.

    ``demanded``: names of tools that must be there, because they need approval. ``may``: notes who may approve calls of
    a server's tool. ``bound``: the seconds that these may take.
    """

    run: "AgentTurn"
    demanded: frozenset[str] = frozenset()
    may: Callable[[str], None] | None = None
    bound: Callable[..., float] | None = None

    async def __aenter__(self) -> Self:
        with outside():
            return await super().__aenter__()

    async def get_tools(self, ctx: ai.RunContext[Any]) -> dict[str, ai.ToolsetTool[Any]]:
        """Return the tools. Refuse a server that lacks a tool that needs approval: it may have another name."""
        try:
            async with asyncio.timeout(self.bound() if self.bound else None):
                tools = await super().get_tools(ctx)
        except TimeoutError:
            raise UnavailableError("an MCP server did not list its tools in time") from None
        if missing := sorted(self.demanded - tools.keys()):
            raise ModelRefusedError(f"the MCP server has no tool {missing[0]}, which needs approval")
        if self.may is not None:
            for name in tools:
                self.may(name)
        return tools

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: ai.RunContext[Any], tool: ai.ToolsetTool[Any]
    ) -> Any:  # noqa: ANN401 - a tool's result
        function = partial(self.wrapped.call_tool, name, ctx=ctx, tool=tool)
        limit = None if self.bound is None else self.bound(name)
        return await self.run.call(name, tool_args, ctx, partial(self.run.called, name, function, limit))

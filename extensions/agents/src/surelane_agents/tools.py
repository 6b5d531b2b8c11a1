"""Tools: plain functions that a model may call in a turn."""

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from surelane.errors import SettingsError
from surelane_worker.handling.asks import People
from surelane_worker.handling.outcomes import Pause, duration

UNSAFE = re.compile(r"[^\w-]", re.ASCII)
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A function that a model may call.

    Attributes:
        function: the function. Its name, docstring and annotations are what the model knows about it.
        approval: whether people in the thread must approve each call.
        by: who may approve; ``None``: everybody who sees the question.
        timeout: how long a call may take; ``None`` for no limit of its own.
        kind: of the child event that a call starts; ``None``: a call calls the function.
        description: what the model knows about it; ``None``: the function's docstring.
    """

    function: Callable[..., Any]
    approval: bool
    by: People
    timeout: Pause | None
    kind: str | None = None
    description: str | None = None

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return self.function.__name__ if self.kind is None else UNSAFE.sub("_", self.kind)


class Tools:
    """The tools of an agent."""

    def __init__(self) -> None:
        self._tools: dict[str, AgentTool] = {}

    def __iter__(self) -> Iterator[AgentTool]:
        return iter(self._tools.values())

    def get(self, name: str) -> AgentTool | None:
        return self._tools.get(name)

    @overload
    def add(self, function: Function, /) -> Function: ...
    @overload
    def add(
        self, /, *, approval: bool = False, by: People = None, timeout: Pause | None = None
    ) -> Callable[[Function], Function]: ...
    def add(
        self,
        function: Function | None = None,
        /,
        *,
        approval: bool = False,
        by: People = None,
        timeout: Pause | None = None,
    ) -> Function | Callable[[Function], Function]:
        """Register a function as a tool: ``@tools.add`` or ``@tools.add(approval=True)``.

        The model learns the function's name, its docstring and the types of its parameters. A synchronous function
        runs in a thread. What it returns must be JSON, or a pydantic model or dataclass. The model gets
        the type and the message of an exception.

        Args:
            approval: whether people in the thread must approve each call.
            by: who may approve: a user's id, several, or a function of an id; by default everybody in the thread.

        Raises:
            ValueError: there is a tool of this name, or the timeout cannot be read.
        """

        def register(function: Function) -> Function:
            if not inspect.isroutine(function):
                raise ValueError(f"a tool is a function, not a {type(function).__name__}")
            if timeout is not None:
                duration(timeout)
            self._put(AgentTool(function, approval or by is not None, by, timeout))
            return function

        return register if function is None else register(function)

    def add_kind(self, kind: str, description: str, *, approval: bool = False, by: People = None) -> None:
        """Let the model hand a question to another agent: a call starts a child event of this kind.

        The child's payload has the question as ``text``, and the turn's ``team`` and ``user``. A handler such as
        ``handlers.on(kind)(agent.turn)`` answers it, with that agent's own model, tools and limits. It says nothing in
        the thread. The turn is suspended meanwhile, and goes on with its answer.

        Args:
            kind: the child's. The model calls the tool by it, with ``_`` for what is no letter, digit or hyphen.
            description: what the model is told about the other agent.
            approval, by: as for :meth:`add`.

        Raises:
            ValueError: there is a tool of this name.
        """
        self._put(AgentTool(_child, approval or by is not None, by, None, kind, description))

    def _put(self, tool: AgentTool) -> None:
        if tool.name in self._tools:
            raise ValueError(f"there are two tools called {tool.name!r}")
        self._tools[tool.name] = tool


def _child(text: str) -> str:
    raise AssertionError(f"a child answers {text!r}")


def load_tools(path: str) -> Tools:
    """Import the tools that ``SURELANE_MODEL_TOOLS`` names (``module:attribute``), or raise :class:`SettingsError`."""
    try:
        found = pkgutil.resolve_name(path)
    except Exception as error:
        raise SettingsError(
            f"SURELANE_MODEL_TOOLS={path!r}: write module:attribute of a surelane_agents.Tools;"
            f" {type(error).__name__}: {error}"
        ) from error
    if not isinstance(found, Tools):
        raise SettingsError(f"SURELANE_MODEL_TOOLS: {path} is a {type(found).__name__}, not a Tools")
    return found

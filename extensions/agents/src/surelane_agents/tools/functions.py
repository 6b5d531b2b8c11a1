"""Tools: plain functions that a model may call in a turn."""

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack, overload

from surelane.errors import SettingsError
from surelane_agents.people.access import Listed
from surelane_agents.people.access import allow as read_allow
from surelane_worker.handling.asks import People
from surelane_worker.handling.outcomes import Pause, duration

UNSAFE = re.compile(r"[^\w-]", re.ASCII)
MARK = "surelane_approval"
ASKER = "asker"
"""In place of who may approve a call: the person who asked the agent, alone."""
Function = TypeVar("Function", bound=Callable[..., Any])
Loaded = TypeVar("Loaded")


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A function that a model may call, on the terms of :meth:`Tools.add`.

    ``kind``: of the child event that a call starts; ``None``: a call calls the function. ``description``: what the
    model knows about it; ``None``: the function's docstring.
    """

    function: Callable[..., Any]
    approval: bool
    by: People
    timeout: Pause | None = None
    kind: str | None = None
    description: str | None = None
    allow: Listed | None = None

    @property
    def name(self) -> str:
        """The name by which the model calls it."""
        return self.function.__name__ if self.kind is None else UNSAFE.sub("_", self.kind)

    def about(self) -> dict[str, Any]:
        """Return what pydantic-ai tells the model of it."""
        return {"name": self.name, "description": self.description}


class ToolTerms(TypedDict, total=False):
    """The terms of :meth:`Tools.add`.

    Attributes:
        approval: whether people in the thread must approve each call; by default as :func:`approved` marks it.
        by: who may approve: a user's id, several, a function of an id, or ``"asker"``: who asked the agent; by default
            those who may use it.
        timeout: how long a call may take; by default there is no limit of its own.
        allow: who may use it, as in ``SURELANE_MODEL_ALLOW``; by default those of ``SURELANE_MODEL_TOOLS_ALLOW``.
    """

    approval: bool | None
    by: People
    timeout: Pause | None
    allow: Listed | None


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
    def add(self, /, **terms: Unpack[ToolTerms]) -> Callable[[Function], Function]: ...
    def add(
        self, function: Function | None = None, /, **terms: Unpack[ToolTerms]
    ) -> Function | Callable[[Function], Function]:
        """Register a function as a tool: ``@tools.add`` or ``@tools.add(approval=True)``.

        The model learns the function's name, its docstring and the types of its parameters. A synchronous function
        runs in a thread. What it returns must be JSON, or a pydantic model or dataclass. The model gets
        the type and the message of an exception. :class:`ToolTerms` has the terms. It raises ``ValueError`` where
        there is a tool of this name, or the timeout or ``allow`` cannot be read.
        """
        return partial(self._add, **terms) if function is None else self._add(function, **terms)

    def _add(
        self,
        function: Function,
        approval: bool | None = None,
        by: People = None,
        **more: Any,
    ) -> Function:
        if not inspect.isroutine(function):
            raise ValueError(f"a tool is a function, not a {type(function).__name__}")
        asks = getattr(function, MARK, False) if approval is None else approval
        who = ASKER if by is None and asks == ASKER else by
        self._put(AgentTool(function, bool(asks) or by is not None, who, **more))
        return function

    def add_kind(
        self,
        kind: str,
        description: str,
        *,
        approval: bool = False,
        by: People = None,
        allow: Listed | None = None,
    ) -> None:
        """Let the model hand a question to another agent: a call starts a child event of this kind.

        The child's payload has the question as ``text``, and the turn's ``team`` and ``user``. A handler such as
        ``handlers.on(kind)(agent.turn)`` answers it, with that agent's own model, tools and limits. It says nothing in
        the thread. The turn is suspended meanwhile, and goes on with its answer.

        The model calls the tool by the kind, with ``_`` for what is no letter, digit or hyphen, and is told the
        description of the other agent. ``approval``, ``by``, ``allow``: as for :meth:`add`.
        """
        self._put(AgentTool(_child, approval or by is not None, by, None, kind, description, allow))

    def _put(self, tool: AgentTool) -> None:
        if tool.allow is not None:
            read_allow(tool.allow)
        if tool.timeout is not None:
            duration(tool.timeout)
        if tool.name in self._tools:
            raise ValueError(f"there are two tools called {tool.name!r}")
        self._tools[tool.name] = tool


def approved(function: Function, by: object = True) -> Function:
    """Let a tool need approval where :meth:`Tools.add` does not say. By :data:`ASKER`: of who asked the agent alone."""
    setattr(function, MARK, by)
    return function


def _child(text: str) -> str:
    raise AssertionError(f"a child answers {text!r}")


def load(path: str, sort: type[Loaded], what: str) -> Loaded:
    """Import what ``module:attribute`` names, of a sort of this package, or raise :class:`SettingsError`."""
    try:
        found = pkgutil.resolve_name(path)
    except Exception as error:
        why = f"{type(error).__name__}: {error}; write module:attribute of a surelane_agents.{sort.__name__}"
        raise SettingsError(f"{what}: {path} cannot be imported: {why}") from error
    if not isinstance(found, sort):
        wrong = f"a {type(found).__name__}, not a surelane_agents.{sort.__name__}"
        raise SettingsError(f"{what}: {path} is {wrong}")
    return found

"""See what goes on in the tasks of an attempt besides its steps and waits.

A handler is suspended only if nothing but its waits can wake it. Python lists no reasons for which a task rests. But
its coroutines tell: a sleep, a call, a thread or a timeout goes on by itself; a lock, a queue, a group of tasks or
another task does not. What is none of these is taken for something that goes on: the handler then keeps its slot.

The coroutines and their frames are read by documented names (:mod:`inspect`). No public name tells which future a task
awaits (``_fut_waiter``), what ``asyncio.gather`` (``_children``) and ``as_completed`` wait for, or which timeout runs
around a coroutine (its referents). Where a Python lacks one of the former, or a coroutine is not seen to its end, the
task counts as going on: a handler keeps its slot longer. A timer that no coroutine shows is not seen.
"""

import asyncio
import gc
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import Context as Variables
from itertools import chain, islice
from math import inf
from types import AsyncGeneratorType, CoroutineType, FrameType, FunctionType, GeneratorType, MethodType
from typing import Any

from surelane_service.lifecycle import RUN

Future = asyncio.Future[Any]
Task = asyncio.Task[Any]

_RESTING = ("asyncio.locks", "asyncio.queues", "asyncio.taskgroups")
"""Modules whose functions wait for other tasks alone."""
_OF_ANYIO = ("TaskGroup.", "Event.", "Lock.", "Semaphore.", "CapacityLimiter.")
"""Those of anyio."""
_BETWEEN = ("cr_await", "gi_yieldfrom", "ag_await")
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_CODE = (CoroutineType, GeneratorType, AsyncGeneratorType)
_MANAGERS = (AbstractContextManager, AbstractAsyncContextManager)
_PARTS = (dict, deque, tuple, *_CODE)
"""What managers keep others in."""
MOST_HELD = 200
"""Objects among which a timeout is looked for."""


def tasks_of(run: object) -> list[Task]:
    """Return the tasks that work for an attempt: its own, and all that they began in a context of theirs."""
    return [task for task in asyncio.all_tasks() if _run_of(task) is run]


def going_on(tasks: Collection[Task], waits: Collection[Future]) -> list[Future | None]:
    """Return what the tasks await and goes on by itself; ``None`` stands for a task that is about to run.

    ``waits``: the futures of the handler's own waits.
    """
    found: list[Future | None] = []
    for task in tasks:
        awaited: Future | None = getattr(task, "_fut_waiter", None)  # has no public name
        if awaited is None or awaited.done():
            found.append(None)
        elif not _rests(task, awaited, tasks, waits):
            found.append(awaited)
    return found


def _run_of(task: Task) -> object:
    """Return the attempt in whose context a task runs."""
    variables: Variables | None
    if hasattr(task, "get_context"):  # since Python 3.12
        variables = task.get_context()
    else:  # a task refers to its own context first
        variables = next((each for each in gc.get_referents(task) if isinstance(each, Variables)), None)
    return None if variables is None else variables.get(RUN)


def is_timed(task: Task) -> bool:
    """Return whether a timeout of the handler runs around what a task awaits."""
    code = [
        each for each in _code_of(task.get_coro()) if not _module(each).startswith("surelane_worker.running")
    ]
    return any(map(_has_timeout, code)) or any(
        _is_waiting(each) and each.cr_frame.f_locals.get("timeout") is not None for each in code
    )


def cuts_of(tasks: Collection[Task], parked: Collection[Future], of: Collection[Task]) -> set[bool]:
    """Return what the timeouts ``of`` tasks do to parked ones: cut them off (true), or go on without them (false)."""
    found = (_reached(task, tasks, parked) for task in of if is_timed(task))
    return {cuts for cuts in found if cuts is not None}


def _reached(future: Any, tasks: Collection[Task], parked: Collection[Future]) -> bool | None:
    """Return whether a cancel reaches what is parked; ``False``: it ends the wait for it alone; ``None``: neither."""
    if future in parked:
        return True
    if future not in tasks:
        inner = getattr(future, "_children", None) or [_shielded(future)]
        found = {_reached(each, tasks, parked) for each in inner if each is not None}
        return None if found <= {None} else True in found and hasattr(future, "_children")
    innermost = next(iter([*_code_of(future.get_coro())][-1:]), None)
    if _is_waiting(innermost):
        named = _frame(innermost).f_locals  # type: ignore[union-attr]  # it has one
        found = {_reached(each, tasks, parked) for each in named.get("fs") or [named.get("fut")]}
        return None if found <= {None} else True in found and "fs" not in named
    if "TaskGroup" in getattr(innermost, "__qualname__", ""):
        return True
    return _reached(getattr(future, "_fut_waiter", None), tasks, parked)


def _shielded(future: object) -> Future | None:
    """Return what an ``asyncio.shield`` protects."""
    called = [each for each in gc.get_referents(future) if isinstance(each, FunctionType)]
    cells = [
        cell for each in called if each.__qualname__.startswith("shield.") for cell in each.__closure__ or ()
    ]
    return next((cell.cell_contents for cell in cells if asyncio.isfuture(cell.cell_contents)), None)


def _is_waiting(code: Any) -> bool:
    """Return whether this is ``asyncio.wait``, or ``wait_for`` of Python 3.11, which sets a timer of its own."""
    frame = _frame(code)
    names = ("wait", "_wait", "wait_for")
    return frame is not None and _module(code) == "asyncio.tasks" and frame.f_code.co_qualname in names


def _rests(task: Task, awaited: Future, tasks: Collection[Task], waits: Collection[Future]) -> bool:
    """Return whether only the handler's waits, or its other tasks, can wake a task."""
    code = list(_code_of(task.get_coro()))
    if not code or (frame := _frame(code[-1])) is None or is_timed(task):
        return False
    innermost = code[-1]
    module, name = _module(innermost), frame.f_code.co_qualname
    if awaited in waits:  # what drives a coroutine by itself may have a timer that is not seen
        return module == "surelane_worker.handling.flow"
    if isinstance(awaited, asyncio.Task):
        return awaited in tasks
    if hasattr(awaited, "_children"):  # asyncio.gather
        return _all_rest([awaited], tasks, waits)
    if any(_module(each) == "asyncio.tasks" and "_wait_for_one" in each.__qualname__ for each in code):
        return _completes(code, tasks, waits)
    if _is_waiting(innermost):
        return _all_rest(frame.f_locals.get("fs") or [frame.f_locals.get("fut")], tasks, waits)
    return module in _RESTING or (module.startswith("anyio.") and name.startswith(_OF_ANYIO))


def _completes(code: list[Any], tasks: Collection[Task], waits: Collection[Future]) -> bool:
    """Return whether an ``asyncio.as_completed`` has no timer and waits for what rests. Where it is not found: no."""
    for each in chain.from_iterable(map(gc.get_referents, code)):
        if type(each).__name__ == "_AsCompletedIterator":  # since Python 3.13
            known = {name.removeprefix("_"): value for name, value in vars(each).items()}
        elif isinstance(each, GeneratorType) and each.__name__ == "as_completed" and each.gi_frame:
            known = each.gi_frame.f_locals
        else:
            continue
        return known.get("timeout_handle", 0) is None and _all_rest(known["todo"], tasks, waits)
    return False


def _all_rest(futures: Iterable[Any], tasks: Collection[Task], waits: Collection[Future]) -> bool:
    return all(
        each.done()
        or each in tasks
        or each in waits
        or (hasattr(each, "_children") and _all_rest(each._children, tasks, waits))  # noqa: SLF001 - see above
        for each in futures
    )


def _code_of(what: Any) -> Iterator[Any]:
    """Yield the coroutines and generators of a task, from its outermost one on."""
    while what is not None:
        if not isinstance(what, _CODE):  # such as what drives an asynchronous generator
            what = next((each for each in gc.get_referents(what) if isinstance(each, _CODE)), None)
            continue
        yield what
        what = next((getattr(what, name) for name in _BETWEEN if hasattr(what, name)), None)


def _frame(code: Any) -> FrameType | None:
    return next((getattr(code, name) for name in _FRAMES if hasattr(code, name)), None)


def _module(code: Any) -> str:
    frame = _frame(code)
    return "" if frame is None else str(frame.f_globals.get("__name__"))


def _has_timeout(code: Any) -> bool:
    """Return whether a timeout around what a coroutine awaits has not passed yet."""
    now = asyncio.get_running_loop().time()
    for each in islice(_held(code), MOST_HELD):
        if isinstance(each, asyncio.Timeout):
            if each.when() is not None and "active" in repr(each):
                return True
        elif type(each).__module__.startswith("anyio.") and now < getattr(each, "deadline", inf) < inf:
            return True  # a scope that was left looks alike, until its deadline
    return False


def _held(holder: object, *, inside: bool = False) -> Iterator[object]:
    """Yield what a coroutine holds, and what the context managers hold that it has entered, such as exit stacks."""
    for each in gc.get_referents(holder):
        entered = isinstance(each, MethodType)
        held = each.__self__ if entered else each
        yield held
        sort = type(held)  # what another class stands in for may not be asked
        if entered or issubclass(sort, _MANAGERS) or (inside and issubclass(sort, _PARTS)):
            yield from _held(held, inside=not issubclass(sort, _CODE))

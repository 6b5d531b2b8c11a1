"""A handler is suspended only if nothing but its waits can wake it. What is unknown keeps it in its slot."""

import asyncio
import contextvars
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import Any

import anyio
import pytest
import uvloop

from surelane_service.lifecycle import RUN
from surelane_worker.handling.flow import AttemptTasks, Flow, Suspended
from surelane_worker.handling.outcomes import Wait

Waits = Callable[[], Coroutine[Any, Any, None]]
LOOPS: list[tuple[Any, bool]] = [(asyncio.new_event_loop, False), (uvloop.new_event_loop, False)]
"""Event loops, and whether their tasks begin at once."""
if sys.version_info >= (3, 12):
    LOOPS.append((asyncio.new_event_loop, True))


class Driven:
    """An awaitable that drives a coroutine itself, so that no frame shows what it awaits."""

    def __init__(self, what: Coroutine[Any, Any, Any]) -> None:
        self._what = what

    def __await__(self) -> Generator[Any, Any, None]:
        sent = None
        while True:
            try:
                found = self._what.send(sent)
            except StopIteration:
                return
            sent = yield found


class Delegating:
    """An awaitable that delegates to another one."""

    def __init__(self, what: Awaitable[None]) -> None:
        self._what = what

    def __await__(self) -> Generator[Any, Any, None]:
        return self._what.__await__()


async def generated(what: Awaitable[None]) -> AsyncIterator[None]:
    await what
    yield


async def in_generator(wait: Waits) -> None:
    async for _ in generated(wait()):
        pass


async def in_anyio(wait: Waits) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        group.start_soon(anyio.Event().wait)


async def in_group(wait: Waits) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(wait())
        group.create_task(asyncio.Queue[None]().get())


async def timed(wait: Waits) -> None:
    async with asyncio.timeout(60):
        await wait()


async def timed_by_anyio(wait: Waits) -> None:
    with anyio.move_on_after(60):
        await wait()


async def timed_and_driven(wait: Waits) -> None:
    await Driven(timed(wait))


async def beside(wait: Waits, what: Awaitable[Any]) -> None:
    await asyncio.gather(wait(), what)


async def as_completed(wait: Waits, timeout: float | None = None, *more: Any) -> None:
    for each in asyncio.as_completed([wait(), wait(), *more], timeout=timeout):
        await each


async def foreign() -> None:
    await asyncio.create_task(asyncio.sleep(60), context=contextvars.Context())


SUSPENDED: dict[str, Callable[[Waits], Awaitable[Any]]] = {
    "wait": lambda wait: wait(),
    "gather": lambda wait: beside(wait, wait()),
    "lock": lambda wait: beside(wait, asyncio.Event().wait()),
    "wait_for": lambda wait: asyncio.wait_for(wait(), None),
    "as_completed": as_completed,
    "group": in_group,
    "anyio": in_anyio,
    "generator": in_generator,
    "awaitable": lambda wait: Delegating(wait()),
}
ALIVE: dict[str, Callable[[Waits], Awaitable[Any]]] = {
    "shield": lambda wait: asyncio.shield(asyncio.ensure_future(wait())),
    "gather in gather": lambda wait: beside(wait, asyncio.gather(asyncio.get_running_loop().create_future())),
    "future beside tasks": lambda wait: as_completed(wait, None, asyncio.get_running_loop().create_future()),
    "timeout of as_completed": lambda wait: as_completed(wait, 60),
    "timeout": timed,
    "timeout of wait_for": lambda wait: asyncio.wait_for(wait(), 60),
    "timeout of wait": lambda wait: asyncio.wait({asyncio.ensure_future(wait())}, timeout=60),
    "timeout of anyio": timed_by_anyio,
    "driven": lambda wait: Driven(wait()),
    "timeout in what is driven": timed_and_driven,
    "sleep": lambda wait: beside(wait, asyncio.sleep(60)),
    "sleep of anyio": lambda wait: beside(wait, anyio.sleep(60)),
    "future": lambda wait: beside(wait, asyncio.get_running_loop().create_future()),
    "task of others": lambda wait: beside(wait, foreign()),
    "driven beside": lambda wait: beside(wait, Driven(asyncio.Event().wait())),
}


async def suspends(program: Callable[[Waits], Awaitable[Any]]) -> bool:
    """Return whether a flow suspends a handler that awaits a program."""
    mark, flows = object(), list[Flow]()

    async def nothing() -> Any:
        return set()

    async def wait() -> None:
        with flows[0].busy():
            await flows[0].wait(Wait("wait", "w", 1, None, blocking=False))

    async def handler() -> None:
        flows.append(Flow(AttemptTasks(asyncio.current_task(), mark), nothing, nothing))
        await program(wait)

    variables = contextvars.copy_context()
    variables.run(RUN.set, mark)
    main = asyncio.get_running_loop().create_task(handler(), context=variables)
    for _ in range(200):
        await asyncio.sleep(0)
    flows[0].close()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    with pytest.raises((Suspended, asyncio.CancelledError, BaseExceptionGroup)):
        await main
    return flows[0].suspend is not None


@pytest.mark.parametrize(("loop", "eager"), LOOPS)
@pytest.mark.parametrize("name", [*SUSPENDED, *ALIVE])
def test_what_a_handler_awaits_decides_whether_it_is_suspended(name: str, loop: Any, eager: bool) -> None:
    async def run() -> bool:
        if eager:
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        return await suspends((SUSPENDED | ALIVE)[name])

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(run()) is (name in SUSPENDED)

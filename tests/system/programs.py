"""Interpret random programs as handlers, in real worker processes that are killed at each boundary.

A program is made of all :data:`OPERATIONS`, in a random order, and some of them run at once. Its second half runs as
the successor of the first. To let programs use a new operation, write a function under :func:`operation`.

Where the environment names a file ``DEATHS``, the process kills itself before and after calls that store something of
a program's events, once at each of these boundaries. The file has those at which a process died.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import asyncpg
import psycopg

from surelane_service.engine import Engine
from surelane_worker import Context, Discard, Event, Handlers
from surelane_worker.errors import ChildError, StepError
from surelane_worker.handling import steps

URI = "EFFECTS"
"""The environment's variable with the URI of the effects' database."""
DEATHS = "DEATHS"
SHARE = "SHARE"
"""The environment's variable with the share of the boundaries at which processes die: 1 is all of them."""
STORING = (
    "settle",
    "store_step",
    "offer_step",
    "register_undo",
    "store_progress",
    "store_tags",
    "take_signal",
    "run_child",
    "end_sleeps",
    "note_event",
)
"""The worker's calls that store something of an event. Each has two boundaries: before and after it."""
MANY = 1000
"""Attempts of each event: a program dies more often than three times without storing anything."""

handlers = Handlers()
steps.HELD = 0.0  # any pause between two tries suspends the handler

Operation = Callable[["Run", str], Awaitable[Any]]
OPERATIONS: dict[str, Operation] = {}
_ours: set[int] = set()
"""The events of programs that this process has begun to handle."""
_pool: asyncpg.Pool | None = None


def operation(function: Operation) -> Operation:
    """Let programs use an operation. It gets a name of its own, and returns a part of the program's result."""
    OPERATIONS[function.__name__] = function
    return function


@dataclass(frozen=True)
class Run:
    """One attempt of a program's event."""

    event: Event
    ctx: Context

    async def effect(self, name: str) -> str:
        """Leave an effect in the team's table, which commits at once; return its name."""
        await (await _connections()).execute(EFFECT, self.event.id, name)
        return name

    async def first(self, name: str) -> bool:
        """Leave an effect; return whether it is the first one of its name."""
        await self.effect(name)
        count = "select count(*) from public.effect where event_id = $1 and name = $2"
        found: int = await (await _connections()).fetchval(count, self.event.id, name)
        return found == 1


EFFECT = "insert into public.effect (event_id, name) values ($1, $2)"


async def _connections() -> asyncpg.Pool:
    global _pool  # noqa: PLW0603 - one for the process
    if _pool is None:
        _pool = await asyncpg.create_pool(os.environ[URI], min_size=0, max_size=4)
    return _pool


class PaymentError(Exception):
    """The card was declined."""


# --- Operations

OPERATIONS |= {
    "step": lambda run, name: run.ctx.step(name, run.effect, name),
    "keyed_steps": lambda run, name: asyncio.gather(
        *(run.ctx.step(name, run.effect, f"{name} [{key}]", key=key) for key in "ab")
    ),
    "sleep": lambda run, name: run.ctx.sleep("5ms", name=name),
    "wait": lambda run, name: run.ctx.wait_for(f"go {name}"),
    "wait_past_its_timeout": lambda run, name: run.ctx.wait_for(name, timeout="5ms", default="late"),
    "child": lambda run, name: run.ctx.run("part", {"name": name}, key=name, max_attempts=MANY),
    "tag": lambda run, name: run.ctx.tag(**{name: "tagged", "last": None}),
    "progress": lambda run, name: run.ctx.progress(f"at {name}"),
}


@operation
async def step_in_thread(run: Run, name: str) -> Any:
    def effect(identity: int) -> str:
        with psycopg.connect(os.environ[URI]) as connection:
            connection.execute(EFFECT.replace("$1", "%s").replace("$2", "%s"), (identity, name))
        return "from a thread"

    return await run.ctx.step(name, effect, run.event.id)


@operation
async def loop(run: Run, name: str) -> Any:
    return [await run.ctx.step(name, run.effect, f"{name} {number}") for number in range(2)]


@operation
async def retried_step(run: Run, name: str) -> Any:
    """Its first try fails, and its pause suspends the handler."""

    async def fails_first() -> str:
        if await run.first(name):
            raise PaymentError(name)
        return "paid"

    return await run.ctx.step(name, fails_first, retries=MANY, backoff="1ms")


@operation
async def caught_failure(run: Run, name: str) -> Any:
    async def fails() -> None:
        await run.effect(name)
        raise PaymentError(name)

    try:
        await run.ctx.step(name, fails)
    except StepError as error:
        return [error.type, error.message, await run.ctx.step(f"after {name}", run.effect, f"after {name}")]


@operation
async def failed_attempt(run: Run, name: str) -> Any:
    done = await run.ctx.step(name, run.effect, name)
    if await run.first(f"raised {name}"):
        raise LookupError(name)
    return done


@operation
async def waits_at_once(run: Run, name: str) -> Any:
    return await asyncio.gather(
        run.ctx.wait_for(f"go {name} 1"),
        run.ctx.wait_for(f"go {name} 2"),
        run.ctx.step(name, run.effect, name),
        run.ctx.sleep("5ms", name=f"{name} slept"),
    )


@operation
async def race(run: Run, name: str) -> Any:
    """Each run must decide it alike, also when the loser has ended since."""
    late = asyncio.create_task(run.ctx.sleep("5ms", name=f"{name} slept"))
    answer = asyncio.create_task(run.ctx.wait_for(f"go {name}"))
    await asyncio.wait([late, answer], return_when=asyncio.FIRST_COMPLETED)
    winners = [late.done(), answer.done()]
    assert await run.ctx.step(name, lambda: winners) == winners, "the race was decided otherwise"
    return await asyncio.gather(late, answer)


@operation
async def patched(run: Run, name: str) -> Any:
    """Beside other tasks either answer may come first. All runs get the same one."""
    answer = await run.ctx.patched(name)
    assert await run.ctx.step(name, lambda: answer) == answer, "the patch was decided otherwise"


@operation
async def undo(run: Run, name: str) -> Any:
    """The program completes, so nothing is undone."""
    await run.ctx.undo(name, run.effect, f"undone {name}")
    return await run.ctx.step(name, run.effect, name)


@operation
async def ask(run: Run, name: str) -> Any:
    answer = await run.ctx.ask(run.event, f"{name}?", ["Yes", "No"], name=name)
    return answer and [answer.choice, answer.user]


@operation
async def reply(run: Run, name: str) -> Any:
    """It returns nothing: a message has another time in each run."""
    await run.ctx.slack.reply(run.event, f"{name} said")
    await run.ctx.step(name, run.ctx.slack.reply, run.event, f"{name} said in a step")


@operation
async def failing_child(run: Run, name: str) -> Any:
    try:
        await run.ctx.run("part", {"name": name, "fails": True}, key=name, max_attempts=MANY)
    except ChildError as error:
        return [error.kind, error.outcome, error.reason, error.message]


@operation
async def children(run: Run, name: str) -> Any:
    given = [{"name": f"{name} {number}"} for number in range(2)]
    return await asyncio.gather(
        *(run.ctx.run("part", each, key=each["name"], max_attempts=MANY) for each in given)
    )


@operation
async def transaction(run: Run, name: str) -> Any:
    async def book(connection: Any, identity: int) -> str:
        await connection.execute(EFFECT, identity, f"booked {name}")
        _die(f"before the commit of {name}")
        return "booked"

    return await run.ctx.transaction(name, await _connections(), book, run.event.id)


# --- Programs


def program(seed: int) -> list[list[list[str]]]:
    """Return the two halves of a program: groups of operations. Those of a group run at once."""
    chance = random.Random(seed)
    left = chance.sample(sorted(OPERATIONS), len(OPERATIONS))
    groups: list[list[str]] = []
    while left:
        size = chance.choice([1, 1, 2, 3])
        groups.append(left[:size])
        left = left[size:]
    return [groups[: len(groups) // 2], groups[len(groups) // 2 :]]


@handlers.on("slack.app_mention", max_attempts=MANY, backoff="1ms")
async def interpret(event: Event, ctx: Context) -> Any:
    """Run a half of the program that the mention names, and continue as the other one."""
    _ours.add(event.id)
    run, half = Run(event, ctx), event.payload.get("half", 0)
    done: list[Any] = []
    for group in program(int(event.slack["text"].split()[-1]))[half]:
        done += await asyncio.gather(*(OPERATIONS[name](run, name) for name in group))
    await ctx.step("last", run.effect, "last")
    if half == 0:
        return ctx.continue_as_new({**event.payload, "half": 1, "before": done})
    return event.payload["before"] + done


@handlers.on("part", max_attempts=MANY, backoff="1ms")
async def part(event: Event, ctx: Context) -> Any:
    _ours.add(event.id)
    name = event.payload["name"]
    await ctx.step(name, Run(event, ctx).effect, name)
    await ctx.sleep("1ms")
    return Discard("no_luck") if event.payload.get("fails") else f"{name} done"


# --- Deaths


def _die(*boundaries: str) -> None:
    """Kill this process, the first time that the program gets to one of these boundaries, if it is chosen."""
    if DEATHS not in os.environ:
        return
    path = Path(os.environ[DEATHS])
    known = path.read_text().splitlines() if path.exists() else []
    share = float(os.environ[SHARE])
    # The last boundary is always chosen: the test waits for a death.
    chosen = [
        each for each in boundaries if each.startswith("after settle") or random.Random(each).random() < share
    ]
    if new := [boundary for boundary in chosen if boundary not in known]:
        with path.open("a") as file:
            file.writelines(f"{boundary}\n" for boundary in new[:1])
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def _boundaries(call: str, first: Any, rest: tuple[Any, ...]) -> list[str]:
    """Name what a call stores, alike in each run."""
    if call != "settle":
        return [f"{call} {first} {rest[1:3]}"] if first in _ours else []
    return [  # several events may be settled at once
        f"settle {identity} {outcome} {_waits(argument)}"
        for identity, _, outcome, argument in first
        if identity in _ours
    ]


def _waits(argument: str | None) -> str:
    """Return the waits of a suspension; of another outcome nothing."""
    found = json.loads(argument or "{}")
    return " ".join(sorted(each["name"] for each in found["waits"])) if "waits" in found else ""


def _mortal(name: str) -> None:
    call = getattr(Engine, name)

    @wraps(call)
    async def dying(self: Engine, first: Any, *rest: Any, **named: Any) -> Any:
        boundaries = _boundaries(name, first, rest)
        _die(*(f"before {each}" for each in boundaries))
        answer = await call(self, first, *rest, **named)
        _die(*(f"after {each}" for each in boundaries))
        return answer

    setattr(Engine, name, dying)


for _name in STORING:
    _mortal(_name)

"""Durable handlers: programs of a grammar, killed at their statements and at random times, hold what is promised.

A failure prints its program, to be pasted into ``FOUND``. ``SURELANE_PROGRAMS=500`` runs as many, from
``SURELANE_SEED`` on; so does ``make simulate``.
"""

import asyncio
import os
import pprint
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from contextvars import Context as Variables
from functools import partial, wraps
from itertools import count
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from surelane.testing import fleet, virtual
from surelane_dev.testing.fleets.virtual import HERE
from surelane_service.engine import Engine
from surelane_service.lifecycle import RUN
from surelane_worker import Context, Event, Handlers
from surelane_worker.errors import ChildError, StepError

SETTINGS = {"SURELANE_SESSION_GRACE": "100ms", "SURELANE_SWEEP_INTERVAL": "1s"}
FIRST, MANY = int(os.environ.get("SURELANE_SEED", "0")), int(os.environ.get("SURELANE_PROGRAMS", "8"))
IF_FAILED = ("cancel", "await", "leave")
STORING = (
    *("settle", "store_step", "register_undo", "store_progress", "store_tags"),
    *("take_signal", "run_child", "end_sleeps", "note_event"),
)
"""The worker's calls that store something of an event: a worker may die right before one, or right after it."""
CHILD = -1
"""Stands for the worker of a child that its parent's undos wait for."""
FOUND: list[tuple[Any, ...]] = []
"""Programs that failed once: each with its deaths at statements, the seconds of its kills, whether it is cancelled, and
its deaths at awaits."""
Program = list[Any]


class Grammar:
    """Makes programs: lists of statements, each a list of its sort and its parts."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._names = 0

    def block(self, depth: int = 3) -> Program:
        return [self._statement(depth) for _ in range(self.random.randint(1, 3))]

    def _statement(self, depth: int) -> Program:
        simple: list[Callable[[], Program]] = [
            self._step,
            lambda: ["try", self._name(), self._pause(), self.random.random() < 0.3, self._fails()],
            lambda: ["undo", self._name()],
            lambda: ["sleep", self._name(), self._pause()],
            lambda: ["wait", self._name()],
            lambda: ["pause", self._pause()],
            lambda: ["reply"],
            lambda: ["keys", self._name(), self._pause()],
            lambda: ["tag", self._name()],
            lambda: ["patched", self._name()],
            lambda: ["stream", self._name(), self._pause()],
            lambda: ["retried", self._name(), self._pause(), self.random.randint(1, 2)],
            lambda: ["child", self._name(), self._pause(), self._fails(), self.random.choice(IF_FAILED)],
        ]
        nested: list[Callable[[], Program]] = [
            lambda: ["gather", *(self.block(depth - 1) for _ in range(self.random.randint(2, 3)))],
            lambda: ["timeout", self._pause(), self.block(depth - 1), self.block(depth - 1)],
            # Its order is stored only if what ends each block is.
            lambda: ["race", *([*self.block(depth - 1), self._step()] for _ in range(2))],
            lambda: ["group", self.block(depth - 1), self.block(depth - 1)],
            lambda: [
                "late",
                *self._step()[1:3],
                [*self.block(depth - 1), self._step()],
                self.block(depth - 1),
            ],
            lambda: ["completed", *([*self.block(depth - 1), self._step()] for _ in range(2))],
        ]
        return self.random.choice(simple + (nested if depth else []))()

    def program(self) -> Program:
        """Return a block that may begin anew with the same code, as a new event."""
        anew = [["anew", self.random.randint(1, 2)]] if self.random.random() < 0.2 else []
        return self.block() + anew

    def _step(self) -> Program:
        return ["step", self._name(), self._pause(), self.random.random() < 0.3, self._fails()]

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"

    def _pause(self) -> float:
        return self.random.choice([0.1, 0.7, 2.0, 5.0])

    def _fails(self) -> int:
        return self.random.choice([0, 0, 0, 1, 9])


class Witness:
    """Runs a program, and notes what its code has seen and what has been done."""

    def __init__(self, deaths: list[int], awaits: list[int]) -> None:
        self.fleet: Any = None
        self.deaths, self.points = deaths, 0
        """After how many statements, and calls of a program or of the worker, it dies."""
        self.awaits, self.resumed = awaits, 0
        """As how many callbacks of its tasks are due, such as what ends an await, it dies instead."""
        self.dead: set[Any] = set()
        self.over = False
        self.accepted = defaultdict[str, list[int]](list)
        """The signals that were sent to each wait."""
        self.got: dict[tuple[str, int], Any] = {}
        """What each wait got, by its name and turn."""
        self.wrong: list[str] = []
        self.running: dict[str, int] = {}
        self.begun: list[str] = []
        self.kept: dict[str, str] = {}
        """How calls ended after which something later began: they end so in each run."""
        self.seen: dict[str, str] = {}
        """How calls ended in this run."""
        self.before: dict[str, dict[str, str]] = {}
        """What was seen by the time at which each step was asked for."""

    def saw(self, name: str, end: str) -> None:
        if self.kept.get(name, end) != end:
            self.wrong.append(f"{name} ended as {end}, after {self.kept[name]}")
        self.seen[name] = end
        if end.startswith("done"):
            self.kept[name] = end

    def begin(self, name: str, worker: int) -> None:
        self.kept |= self.before.get(name, {})
        if name in self.kept:
            self.wrong.append(f"{name} begins again after {self.kept[name]}")
        if self.running.get(name) == worker:
            self.wrong.append(f"{name} begins beside itself")
        mine = [by for each, by in self.running.items() if each.split()[-1] == name.rsplit(maxsplit=1)[-1]]
        if name.startswith("undo") and {worker, CHILD} & set(mine):  # a child of an earlier turn goes on
            self.wrong.append(f"{name} begins beside {self.running}")
        self.running[name] = worker
        self.begun.append(name)

    def end(self, name: str) -> None:
        self.running.pop(name, None)

    def check_signals(self) -> None:
        """Note where waits of a name did not get what was accepted for them, in its order."""
        for wait, sent in self.accepted.items():
            taken = [
                value for (name, _), value in sorted(self.got.items()) if name == wait and value is not None
            ]
            if taken != sent[: len(taken)]:
                self.wrong.append(f"{wait} got {taken} of {sent}")

    async def speak(self, event: Event, ctx: Context, name: str, seconds: float) -> None:
        where = {"channel": "C1", "thread_ts": "1.0", "recipient_user_id": "U1"}
        async with ctx.slack.stream(event, interval=0, **where) as stream:
            for word in ("one ", "two ", "three "):
                await stream.append(f"{name} {word}")
                await asyncio.sleep(seconds / 3)

    async def work(self, name: str, seconds: float, fails: int, worker: int) -> None:
        self.begin(name, worker)
        try:
            await asyncio.sleep(seconds)
            if self.begun.count(name) <= fails:
                raise LookupError(name)
        finally:
            self.end(name)

    def work_in_thread(self, name: str, seconds: float, fails: int, worker: int) -> None:
        self.begin(name, worker)
        try:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(seconds), self.fleet.loop).result()
            if self.begun.count(name) <= fails:
                raise LookupError(name)
        finally:
            self.end(name)

    async def point(self) -> None:
        """Die here, if the program is to."""
        if HERE.get() in self.dead:
            await asyncio.Future()
        self.points += 1
        if self.points in self.deaths:
            self.over = True
            self.running.clear()
            self.dead.add(HERE.get())
            await self.fleet.die()

    def around(self, name: str) -> Callable[..., Any]:
        """Return a call of the worker, with a point before and after it."""
        call = getattr(Engine, name)

        @wraps(call)
        async def mortal(*given: Any, **named: Any) -> Any:
            await self.point()
            answer = await call(*given, **named)
            await self.point()
            return answer

        return mortal

    def soon(self, call_soon: Any) -> Any:
        """Return the loop's ``call_soon``, which kills a host instead as it is to go on with a handler's task."""

        def counted(callback: Any, *args: Any, context: Any = None) -> Any:
            if context is not None and context.get(RUN) is not None and context[HERE].alive:
                self.resumed += 1
                if self.resumed in self.awaits:
                    self.over, context[HERE].alive = True, False
                    self.running.clear()
                    self.fleet.loop.create_task(self._anew(context[HERE]), context=Variables())
            return call_soon(callback, *args, context=context)

        return counted

    async def killed(self, pauses: list[float]) -> None:
        """Kill a worker after each pause, and start another one."""
        for pause in pauses:
            await self.fleet.sleep(pause)
            self.over = True
            if self.fleet.workers:  # else one has just died
                await self.fleet.kill()
                self.running.clear()
                self.fleet.start()

    async def _anew(self, host: Any) -> None:
        await self.fleet.kill(next(each for each in self.fleet.workers if each.host is host))
        self.fleet.start()

    async def call(self, name: str, what: Any) -> None:
        """Await a call of ``ctx``, and note how it ends."""
        self.before[name] = dict(self.seen)
        try:
            self.saw(name, f"done: {await what}")
            await self.point()
        except (StepError, ChildError):
            self.saw(name, "failed")
            raise
        except asyncio.CancelledError:
            if not self.over:
                self.saw(name, "cut off")
            raise

    async def run(self, program: Program, event: Event, ctx: Context) -> Any:
        result = None
        for statement in program:
            await self.point()
            result = await self._do(statement, event, ctx)
        return result

    async def _do(self, statement: Program, event: Event, ctx: Context) -> Any:  # noqa: C901 - one case per sort
        turn = event.payload["turn"]
        match statement:
            case ["step", name, seconds, sync, fails]:
                work, named = self.work_in_thread if sync else self.work, f"{name} {turn}"
                await self.call(named, ctx.step(named, partial(work, named, seconds, fails, event.claim)))
            case ["try", *rest]:
                try:
                    await self._do(["step", *rest], event, ctx)
                except StepError:
                    await self._do(["reply"], event, ctx)
            case ["retried", name, seconds, fails]:
                work = partial(self.work, named := f"{name} {turn}", seconds, fails, event.claim)
                await self.call(named, ctx.step(named, work, retries=2, backoff="4s"))
            case ["undo", name]:
                await ctx.undo(name, partial(self.work, f"undo {name} {turn}", 0.1, 0, event.claim))
            case ["sleep", name, seconds]:
                await self.call(f"{name} {turn}", ctx.sleep(seconds, name=name))
            case ["wait", name]:
                await self.call(f"{name} {turn}", self._take(name, turn, ctx))
            case ["child", name, seconds, fails, if_failed]:
                given = {"name": f"{name} {turn}", "seconds": seconds, "fails": fails, "if_failed": if_failed}
                try:
                    await self.call(given["name"], ctx.run("child", given, key=name, if_failed=if_failed))
                except ChildError:
                    await self._do(["reply"], event, ctx)
            case ["pause", seconds]:
                await asyncio.sleep(seconds)
            case ["reply"]:
                before = dict(self.seen)
                await ctx.slack.reply(event, "said", channel="C1")
                self.kept |= before
            case ["keys", name, seconds]:

                async def keyed(named: str, key: str) -> None:
                    work = partial(self.work, f"{named} {key}", seconds, 0, event.claim)
                    await self.call(f"{named} {key}", ctx.step(named, work, key=key))

                await asyncio.gather(*(keyed(f"{name} {turn}", key) for key in "ab"))
            case ["tag", name]:
                await ctx.tag(**{name: turn, "last": None})
                await ctx.progress(f"at {name}")
            case ["patched", name]:
                await self.call(f"{name} {turn}", ctx.patched(f"{name} {turn}"))
            case ["stream", name, seconds]:
                named = f"{name} {turn}"
                await self.call(named, ctx.step(named, self.speak, event, ctx, named, seconds))
            case ["gather", *blocks]:
                await asyncio.gather(*(self.run(block, event, ctx) for block in blocks))
            case ["group", *blocks]:
                async with asyncio.TaskGroup() as group:
                    for block in blocks:
                        group.create_task(self.run(block, event, ctx))
            case ["timeout", seconds, block, instead]:
                try:
                    async with asyncio.timeout(seconds):
                        await self.run(block, event, ctx)
                except TimeoutError:
                    await self.run(instead, event, ctx)
            case ["late", name, seconds, block, instead]:
                asleep = self._do(["sleep", name, seconds], event, ctx)
                both = [asyncio.create_task(each) for each in (self.run(block, event, ctx), asleep)]
                try:
                    done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    if both[0] not in done:
                        await self.run(instead, event, ctx)
                    await asyncio.gather(*both)
                finally:
                    for task in both:
                        task.cancel()
            case ["completed", *blocks]:
                for each in asyncio.as_completed([self.run(block, event, ctx) for block in blocks]):
                    await each
            case ["race", *blocks]:
                tasks = [asyncio.create_task(self.run(block, event, ctx)) for block in blocks]
                try:
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                await asyncio.gather(*done)
            case ["anew", times] if turn < times:
                return ctx.continue_as_new({"turn": turn + 1})
        return None

    async def _take(self, name: str, turn: int, ctx: Context) -> Any:
        self.got[name, turn] = await ctx.wait_for(name, timeout="20s")
        return self.got[name, turn]


def waits_of(program: Program) -> list[str]:
    """Return the names of a program's waits."""
    inner = [name for part in program if isinstance(part, list) for name in waits_of(part)]
    return [program[1], *inner] if program[:1] == ["wait"] else inner


def chosen(seed: int) -> tuple[Any, ...]:
    """Return a program, and what happens to it: as in ``FOUND``."""
    chance = Random(f"chance {seed}")
    deaths = sorted({chance.randint(1, 60) for _ in range(chance.choice([0, 1, 2, 5]))})
    kills = [round(chance.uniform(0, 4), 2) for _ in range(chance.choice([0, 0, 1, 3]))]
    cancels, program = chance.random() < 0.3, Grammar(seed).program()
    awaits = sorted({chance.randint(1, 300) for _ in range(chance.choice([1, 2, 3]))})
    return program, deaths, kills, cancels, awaits if seed % 2 else []


CHOSEN = [*FOUND, *map(chosen, range(FIRST, FIRST + MANY))]
EVERYDAY = len(FOUND) + 3
SLOW = [pytest.param(each, marks=pytest.mark.slow) for each in CHOSEN[EVERYDAY:]]


@pytest.mark.parametrize("chosen", [*CHOSEN[:EVERYDAY], *SLOW], ids=count(FIRST - len(FOUND)))
@virtual
async def test_a_program_holds_what_is_promised_although_workers_die(chosen: tuple[Any, ...]) -> None:
    program, deaths, kills, cancels, awaits = chosen
    witness, handlers, chance = Witness(deaths, awaits), Handlers(), Random(0)
    attempts = 3 + len(kills) + len(deaths) + len(awaits)

    @handlers.on("program", backoff="100ms", max_attempts=attempts)
    async def run(event: Event, ctx: Context) -> Any:
        witness.seen, witness.over = {}, False
        witness.got = {key: value for key, value in witness.got.items() if key[1] < event.payload["turn"]}
        try:
            return await witness.run(program, event, ctx)
        finally:
            witness.over = True

    @handlers.on("child", backoff="100ms", max_attempts=3)
    async def child(event: Event, ctx: Context) -> None:
        name, seconds, fails, if_failed = event.payload.values()
        worker = 0 if if_failed == "leave" else CHILD
        await ctx.step("work", partial(witness.work, f"child {name}", seconds, fails, worker))

    async with AsyncExitStack() as stack, fleet(handlers, settings=SETTINGS) as f:
        witness.fleet = f
        stack.enter_context(patch.object(f.loop, "call_soon", witness.soon(f.loop.call_soon)))
        for name in STORING:
            stack.enter_context(patch.object(Engine, name, witness.around(name)))
        await f.enqueue("program", {"turn": 0}, item_key="program")

        async def send() -> None:
            for value, name in enumerate(waits_of(program) * 3):
                await f.sleep(chance.uniform(0, 3))
                if await f.queue.signal("program", name, value) == "sent":
                    witness.accepted[name].append(value)

        sending = asyncio.create_task(send())
        await witness.killed(kills)
        if cancels:
            await f.queue.cancel("program")

        async def over() -> bool:
            return not await f.sql("select from agent.event where item_key = 'program'")

        await f.until(over, "2h")
        await sending
    witness.check_signals()
    said = Counter(text.partition(" one")[0] for each in f.slack.messages if " one" in (text := each["text"]))
    witness.wrong += [f"{name} was said twice" for name, times in said.items() if times > 1]
    assert not witness.wrong, "\n".join([f"FOUND.append({pprint.pformat(chosen)})", *witness.wrong])

"""Durable handlers: programs of a grammar, killed at random times, hold what docs/durable.md promises.

A failure prints its program as code. ``SURELANE_PROGRAMS=500`` runs as many, from ``SURELANE_SEED`` on.
"""

import asyncio
import os
import pprint
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from surelane.testing import fleet, virtual
from surelane_worker import Context, Event, Handlers, StepError

SETTINGS = {"SURELANE_SESSION_GRACE": "100ms", "SURELANE_SWEEP_INTERVAL": "1s"}
FIRST, MANY = int(os.environ.get("SURELANE_SEED", "0")), int(os.environ.get("SURELANE_PROGRAMS", "8"))
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
            lambda: ["step", self._name(), self._pause(), self.random.random() < 0.3, self._fails()],
            lambda: ["try", self._name(), self._pause(), self.random.random() < 0.3, self._fails()],
            lambda: ["undo", self._name()],
            lambda: ["sleep", self._name(), self._pause()],
            lambda: ["wait", self._name()],
            lambda: ["pause", self._pause()],
            lambda: ["reply"],
        ]
        nested: list[Callable[[], Program]] = [
            lambda: ["gather", *(self.block(depth - 1) for _ in range(self.random.randint(2, 3)))],
            lambda: ["timeout", self._pause(), self.block(depth - 1), self.block(depth - 1)],
            lambda: ["race", self.block(depth - 1), self.block(depth - 1)],
            lambda: ["group", self.block(depth - 1), self.block(depth - 1)],
        ]
        return self.random.choice(simple + (nested if depth else []))()

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"

    def _pause(self) -> float:
        return self.random.choice([0.1, 0.7, 2.0, 5.0])

    def _fails(self) -> int:
        return self.random.choice([0, 0, 0, 1, 9])


class Witness:
    """Runs a program, and notes what its code has seen and what has been done."""

    def __init__(self) -> None:
        self.fleet: Any = None
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

    def begin(self, name: str, worker: int) -> None:
        self.kept |= self.before.get(name, {})
        if name in self.kept:
            self.wrong.append(f"{name} begins again after {self.kept[name]}")
        if self.running.get(name) == worker:
            self.wrong.append(f"{name} begins beside itself")
        if name.startswith("undo") and worker in self.running.values():
            self.wrong.append(f"{name} begins beside {self.running}")
        self.running[name] = worker
        self.begun.append(name)

    def end(self, name: str) -> None:
        self.running.pop(name, None)

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

    async def call(self, name: str, what: Any) -> None:
        """Await a call of ``ctx``, and note how it ends."""
        self.before[name] = dict(self.seen)
        try:
            await what
            self.saw(name, "done")
        except StepError:
            self.saw(name, "failed")
            raise
        except asyncio.CancelledError:
            if not self.over:
                self.saw(name, "cut off")
            raise

    over = False

    async def run(self, program: Program, event: Event, ctx: Context) -> None:
        for statement in program:
            await self._do(statement, event, ctx)

    async def _do(self, statement: Program, event: Event, ctx: Context) -> None:  # noqa: C901 - one case per sort
        match statement:
            case ["step", name, seconds, sync, fails]:
                work = self.work_in_thread if sync else self.work
                await self.call(name, ctx.step(name, partial(work, name, seconds, fails, event.claim)))
            case ["try", *rest]:
                try:
                    await self._do(["step", *rest], event, ctx)
                except StepError:
                    await self._do(["reply"], event, ctx)
            case ["undo", name]:
                await ctx.undo(name, partial(self.work, f"undo {name}", 0.1, 0, event.claim))
            case ["sleep", name, seconds]:
                await self.call(name, ctx.sleep(seconds, name=name))
            case ["wait", name]:
                await self.call(name, ctx.wait_for(name, timeout="20s"))
            case ["pause", seconds]:
                await asyncio.sleep(seconds)
            case ["reply"]:
                before = dict(self.seen)
                await ctx.slack.reply(event, "said", channel="C1")
                self.kept |= before
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
            case ["race", *blocks]:
                tasks = [asyncio.create_task(self.run(block, event, ctx)) for block in blocks]
                try:
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                await asyncio.gather(*done)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + MANY))
@virtual
async def test_a_program_holds_what_is_promised_although_workers_die(seed: int) -> None:
    program, chance, witness = Grammar(seed).block(), Random(f"chance {seed}"), Witness()
    handlers, kills = Handlers(), chance.choice([0, 0, 1, 3])

    @handlers.on("program", backoff="100ms", max_attempts=3 + kills)
    async def run(event: Event, ctx: Context) -> None:
        witness.seen, witness.over = {}, False
        try:
            await witness.run(program, event, ctx)
        finally:
            witness.over = True

    async with fleet(handlers, settings=SETTINGS) as f:
        witness.fleet = f
        event = await f.enqueue("program")
        for _ in range(kills):
            await f.sleep(chance.uniform(0, 4))
            witness.over = True
            await f.kill()
            witness.running.clear()
            f.start()
        if chance.random() < 0.3:
            await f.cancel(event)
        await f.until(event.ended, "2h")
    assert not witness.wrong, f"program = {pprint.pformat(program)}\nkills = {kills}\n" + "\n".join(
        witness.wrong
    )

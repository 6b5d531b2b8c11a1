"""Handle the events of the durable handlers' tests in real worker processes."""

import os
import signal
import time
from pathlib import Path

from pydantic import BaseModel

from surelane_worker import Context, Event, Handlers

handlers = Handlers()


class Log:
    """A file in which a run notes what it does, across deaths of its worker."""

    def __init__(self, event: Event) -> None:
        self.path = Path(event.payload["log"])

    def add(self, what: str) -> None:
        """Note something."""
        with self.path.open("a") as file:
            file.write(f"{what}\n")

    def die_once(self, where: str) -> None:
        """Kill this process, the first time it gets here."""
        died = f"died {where}"
        if not self.path.exists() or died not in self.path.read_text().splitlines():
            self.add(died)
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)


class Plan(BaseModel):
    """A model that goes through a step."""

    text: str
    numbers: list[int]


@handlers.on("mortal")
async def mortal(event: Event, ctx: Context) -> object:
    """Die before, in and after every step and wait, once each."""
    log = Log(event)

    def plan(text: str) -> Plan:
        log.die_once("in plan")
        log.add("ran plan")
        return Plan(text=text, numbers=[1, 2])

    async def count(number: int) -> int:
        log.die_once(f"in count {number}")
        log.add(f"ran count {number}")
        return number * 2

    log.die_once("at start")
    made = await ctx.step("plan", plan, "deploy")
    assert isinstance(made, Plan)
    log.die_once("after plan")
    total = 0
    for number in made.numbers:
        total += await ctx.step("count", count, number)
        log.die_once(f"after count {number}")
    await ctx.sleep("50ms")
    log.die_once("after sleep")
    answer = await ctx.wait_for("answer")
    log.die_once("after answer")
    total += await ctx.step("last", count, answer)
    log.die_once("at end")
    return {"total": total, "text": made.text, "attempt": ctx.attempt}

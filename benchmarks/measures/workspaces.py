"""A thousand installed workspaces: what their tokens cost the worker, and how they are refreshed under traffic."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from slack_sdk.oauth.installation_store import Installation

from benchmarks import consumer, figures, ours
from benchmarks.bench import Bench, at_rest
from benchmarks.consumer import Consumer, Moment
from benchmarks.fill import fill
from benchmarks.result import Bars, Result, Table, Verdict
from benchmarks.rotation import CALLERS, WORKERS, Rotation, pool_of, rotated
from surelane.calls import Connection
from surelane_encryption.keys import Keyring, new_key
from surelane_service.installations import Installations
from surelane_service.logs import configure_logs

WORKSPACES = 1000
TOKEN, ONE, MANY = "one token for all", "one installed workspace", "all workspaces installed"
MOST_LOST = 0.05
BLOCKS = 12
"""Blocks of events per worker and round, without the first. They end before a lookup is repeated, after 46 seconds."""
PERIOD = 46
"""Seconds for which a lookup is kept, at least."""
AWAY = "http://127.0.0.1:9/api/"


@dataclass(frozen=True)
class Block:
    """The figures of one block of events.

    Attributes:
        rate: events per second.
        cpu: the worker's CPU seconds per event, those of the kernel for it included.
        instructions: the instructions per event of the worker's main thread, without the kernel's; ``None`` where they
            cannot be counted.
    """

    rate: float
    cpu: float
    instructions: float | None


class Load:
    """A worker with its queue, and the blocks of events that it has handled."""

    def __init__(self, name: str, workspaces: int, connection: Connection, worker: Consumer) -> None:
        self.name = name
        self._workspaces = workspaces
        self._connection = connection
        self._worker = worker
        self._done = 0
        self.blocks: list[Block] = []
        self.looking = 0.0
        """CPU seconds of the first block minus a later block's: the lookups of all workspaces."""

    async def take(self, count: int) -> None:
        """Store ``count`` events, and wait until they are handled."""
        async with self._connection.transaction():
            await fill(self._connection, count)
            spread = "update agent.event set event = jsonb_set(event, '{team_id}', to_jsonb('T' || id % $1))"
            await self._connection.execute(spread, self._workspaces)
        self._done += count
        await self._worker.handled(self._done, ours.WITHIN)
        await self._connection.execute("vacuum agent.event")
        first = self._done == count
        moments = [each for each in self._worker.moments if each.count > self._done - count or first]
        self.blocks.append(_block(moments))

    def end(self, count: int) -> None:
        """Take the first block apart."""
        first = self.blocks.pop(0)
        self.looking = max(first.cpu - figures.median([each.cpu for each in self.blocks]), 0.0) * count


def _block(moments: Sequence[Moment]) -> Block:
    """Return the figures between the first and the last report of a block. The wait for its events is before."""
    first, last = moments[0], moments[-1]
    count, counted = last.count - first.count, None
    if last.instructions is not None and first.instructions is not None:
        counted = (last.instructions - first.instructions) / count
    return Block(count / (last.at - first.at), (last.cpu - first.cpu) / count, counted)


async def measure(bench: Bench) -> Result:
    """Give blocks of events to three workers in turn; then refresh all tokens under traffic."""
    workspaces, count = bench.size(WORKSPACES, 50), bench.size(10_000, 4_000)
    rounds = [await _round(bench, workspaces, count, nth) for nth in range(bench.rounds)]
    bench.say(f"{workspaces:,} tokens are refreshed")
    configure_logs("benchmarks", "warning")
    async with bench.database() as database, pool_of(database.worker) as pool:
        rotation = await rotated(pool, workspaces)
    return _result(bench, workspaces, count, rounds, rotation)


async def _round(bench: Bench, workspaces: int, count: int, nth: int) -> list[Load]:
    """Start a worker per load. They get their blocks in turn, so what else the machine does is the same for each."""
    loads = []
    async with AsyncExitStack() as stack:
        for name, installed in ((TOKEN, 0), (ONE, 1), (MANY, workspaces)):
            loads.append(await _started(bench, stack, name, installed))
        blocks = bench.size(BLOCKS, 2)
        for block in range(1 + blocks):
            for load in loads if (nth + block) % 2 else loads[::-1]:
                await load.take(count)
            if block % 4 == 0:
                bench.say(f"round {nth + 1} of {bench.rounds}: block {block} of {blocks}")
    for load in loads:
        load.end(count)
        bench.say(f"{load.name}: {figures.microseconds(figures.median([each.cpu for each in load.blocks]))}")
    return loads


async def _started(bench: Bench, stack: AsyncExitStack, name: str, installed: int) -> Load:
    """Start a worker with so many installed workspaces; with none: with one token."""
    key = new_key()
    installs = {"SLACK_CLIENT_ID": "1.1", "SLACK_CLIENT_SECRET": "unused", "SURELANE_ENCRYPTION_KEYS": key}
    settings = installs if installed else {"SLACK_BOT_TOKEN": "xoxb-one"}
    database = await stack.enter_async_context(bench.database())
    connection = await stack.enter_async_context(at_rest(database))
    installations = Installations(connection, Keyring([key]))
    for nth in range(installed):
        await installations.save(
            Installation(app_id="A1", team_id=f"T{nth}", user_id="U1", bot_token=f"xoxb-{nth}")
        )
    worker = consumer.worker(
        database.worker,
        "reading",
        concurrency=10,
        SLACK_API_URL=AWAY,
        SURELANE_POLL_INTERVAL="100ms",
        **settings,
    )
    return Load(name, max(installed, 1), connection, await stack.enter_async_context(worker))


def share(rounds: Sequence[Sequence[Load]], name: str, field: str) -> float:
    """Return the median of blocks: a figure of ``name`` of that of all workspaces, whose block is its neighbour."""
    found = []
    for loads in rounds:
        by_name = {load.name: load.blocks for load in loads}
        pairs = zip(by_name[name], by_name[MANY], strict=True)
        found += [getattr(one, field) / getattr(many, field) for one, many in pairs]
    return figures.median(found)


def _result(
    bench: Bench, workspaces: int, count: int, rounds: list[list[Load]], rotation: Rotation
) -> Result:
    names = (TOKEN, ONE, MANY)
    blocks = {
        name: [block for loads in rounds for load in loads if load.name == name for block in load.blocks]
        for name in names
    }
    looking = {
        name: figures.median([load.looking for loads in rounds for load in loads if load.name == name])
        for name in names
    }
    rates = {name: figures.median([block.rate for block in done]) for name, done in blocks.items()}
    # Lookups take their share of each second of the worker's core.
    left = 1 - max(looking[MANY] - looking[ONE], 0.0) / PERIOD
    shares = {name: left * share(rounds, name, "cpu") for name in (ONE, TOKEN)}
    refreshed = f"{rotation.granted:,} granted, {rotation.asked:,} asked for, in {rotation.seconds:.0f} s"
    return Result(
        title="Many workspaces",
        how=f"""
            Three workers have a queue each: one with one token for all, one with one workspace that has
            installed the app, and one with {workspaces:,} that have and whose events come in turn. Their
            handlers read the payload. They get blocks of {count:,} events, one worker after the other, in
            both orders: so what else the machine does meets each of them. The first block is apart: in it
            each workspace is looked up. The targets compare the worker's CPU per event in neighbouring
            blocks, and count the lookups of all workspaces every {PERIOD} seconds. They are medians of
            {len(blocks[MANY])} blocks in {bench.rounds} rounds. Instructions are those of the worker's main
            thread, without the kernel's, where the machine counts them. Then {WORKERS} workers refresh
            {rotation.tokens:,} tokens that expire soon, as fast as they can, while {CALLERS} callers
            call a simulated Slack with the tokens of all workspaces in turn.
        """,
        table=Table(
            ("tokens", "events/s", "lowest…highest", "CPU per event", "instructions", "CPU of all lookups"),
            [
                (
                    name,
                    figures.rate(rates[name]),
                    figures.spread([block.rate for block in done]),
                    figures.microseconds(figures.median([block.cpu for block in done])),
                    _instructions(done),
                    figures.milliseconds(looking[name]),
                )
                for name, done in blocks.items()
            ],
        ),
        verdicts=[
            *(
                Verdict(
                    f"{workspaces:,} workspaces: at least {1 - MOST_LOST:.2f} of the events, by the worker's CPU, "
                    f"with {name}",
                    figures.ratio(measured),
                    measured >= 1 - MOST_LOST,
                )
                for name, measured in shares.items()
            ),
            Verdict(
                "each token refreshed once",
                refreshed,
                rotation.asked == rotation.granted == rotation.tokens,
            ),
            Verdict(
                "no call fails meanwhile", f"{rotation.failed} of {rotation.calls:,}", not rotation.failed
            ),
        ],
        plots=[Bars("One worker drains a queue", "events/s", rates)],
    )


def _instructions(blocks: Sequence[Block]) -> str:
    counted = [block.instructions for block in blocks if block.instructions is not None]
    return f"{figures.median(counted) / 1000:.1f} k" if counted else ""

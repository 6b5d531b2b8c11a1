"""Drain: how fast one worker process empties a full queue into history, beside its peers."""

from functools import partial

from benchmarks import consumer, figures, ours
from benchmarks.bench import Bench, at_rest
from benchmarks.fill import fill
from benchmarks.meter import usage
from benchmarks.ours import CONCURRENCY, WITHIN, Drain, drain, measured
from benchmarks.peers.registry import PEERS, Peer
from benchmarks.result import Bars, Result, Verdict

OURS, KEYED = "surelane", "surelane, events with a natural key"


async def measure(bench: Bench) -> Result:
    """Drains each queue once a round, in turn."""
    rounds: dict[str, list[Drain]] = {}
    for _ in range(bench.rounds):
        for name, item_key in ((OURS, None), (KEYED, "key ")):
            rounds.setdefault(name, []).append(await _ours(bench, item_key))
            bench.say(f"{name}: {figures.rate(rounds[name][-1].rate)} events/s")
        for peer in PEERS:
            rounds.setdefault(peer.name, []).append(await _peer(bench, peer))
            bench.say(f"{peer.name}: {figures.rate(rounds[peer.name][-1].rate)} events/s")
    return _result(bench, rounds)


async def _ours(bench: Bench, item_key: str | None) -> Drain:
    count = bench.size(100_000, 20_000)
    return await drain(
        bench,
        count,
        partial(fill, count=count, item_key=item_key),
        lambda database: consumer.worker(database.worker),
    )


async def _peer(bench: Bench, peer: Peer) -> Drain:
    count = int(bench.size(100_000, 20_000) * peer.share)
    async with bench.database(empty=True) as database:
        await peer.install(database.admin)
        await peer.fill(database.admin, count)
        async with at_rest(database) as connection:
            before = await usage(connection)
            async with consumer.running(
                peer.name, peer.module, "drain", database.admin, ends=True
            ) as process:
                await process.handled(count, WITHIN)
            used = await usage(connection) - before
            return await measured(
                connection, peer.span, count, process.cpu_per_event(), used.wal_bytes, used.commits
            )


def _result(bench: Bench, rounds: dict[str, list[Drain]]) -> Result:
    rates = ours.rates(rounds)
    fastest = max((peer.name for peer in PEERS), key=lambda name: rates[name])
    lead = rates[OURS] / rates[fastest]
    return Result(
        title="Drain",
        how=_how(bench),
        table=ours.table("queue", rounds),
        verdicts=[
            Verdict(
                f"one worker process drains at least twice as fast as the fastest peer ({fastest})",
                f"{figures.ratio(lead)} times",
                lead >= 2,
            )
        ],
        plots=[Bars("Drain of a full queue, one worker process", "events/s", rates)],
    )


def _how(bench: Bench) -> str:
    count = bench.size(100_000, 20_000)
    peers = "; ".join(f"{peer.name} ({int(count * peer.share):,} jobs): {peer.settings}" for peer in PEERS)
    return f"""
        A queue of {count:,} events of 400 bytes is emptied by one worker process whose handler does
        nothing; every event ends in history. Median of {bench.rounds} rounds, the queues in turn, each
        in a fresh database after a checkpoint. The rate is from the first claim to the last completion
        by the database's clock. Surelane: the service as shipped, SURELANE_CONCURRENCY={CONCURRENCY}.
        {peers}.
    """

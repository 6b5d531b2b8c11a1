"""Measure how fast one worker process empties a full queue into history, beside its peers."""

from collections.abc import Mapping
from functools import partial
from operator import itemgetter

from benchmarks import consumer, figures, ours
from benchmarks.bench import Bench, at_rest
from benchmarks.fill import fill
from benchmarks.meter import usage
from benchmarks.ours import CONCURRENCY, WITHIN, Drain, drain, measured
from benchmarks.peers.registry import Peer, Tuning, at_hand
from benchmarks.result import Bars, Result, Verdict

TRIAL = 20_000
"""Events of a trial. A slow peer gets its share of them."""
OURS, KEYED = "surelane", "surelane, events with a natural key"


async def measure(bench: Bench) -> Result:
    """Find each peer's fastest tuning, then drain each queue once per round, in turn."""
    peers, missing = await at_hand()
    tunings = {peer: tuning for peer in peers if (tuning := await _fastest(bench, peer)) is not None}
    missing |= {peer.name: "it did not finish a trial" for peer in peers if peer not in tunings}
    rounds: dict[str, list[Drain]] = {}
    for _ in range(bench.rounds):
        for name, item_key in ((OURS, None), (KEYED, "key ")):
            rounds.setdefault(name, []).append(await _ours(bench, item_key))
            bench.say(f"{name}: {figures.rate(rounds[name][-1].rate)} events/s")
        for peer, tuning in tunings.items():
            done = await _finished(bench, peer, tuning, _count(bench))
            if done is not None:
                rounds.setdefault(peer.name, []).append(done)
                bench.say(f"{peer.name}: {figures.rate(done.rate)} events/s")
    missing |= {peer.name: "it finished no round" for peer in tunings if peer.name not in rounds}
    tunings = {peer: tuning for peer, tuning in tunings.items() if peer.name in rounds}
    return _result(bench, rounds, tunings, missing)


def _count(bench: Bench) -> int:
    return bench.size(100_000, 20_000)


async def _fastest(bench: Bench, peer: Peer) -> Tuning | None:
    if bench.quick or len(peer.tunings) == 1:
        return peer.tunings[-1]
    trials = [(await _finished(bench, peer, tuning, TRIAL), tuning) for tuning in peer.tunings]
    rates = [(done.rate, tuning) for done, tuning in trials if done is not None]
    if not rates:
        return None
    _, fastest = max(rates, key=itemgetter(0))
    told = ", ".join(figures.rate(rate) for rate, _ in rates)
    bench.say(f"{peer.name} is fastest with {_text(fastest)}, of {told} events/s")
    return fastest


async def _finished(bench: Bench, peer: Peer, tuning: Tuning, count: int) -> Drain | None:
    """Run a peer's drain. If it did not complete all its jobs, print a line and return ``None``."""
    try:
        return await _peer(bench, peer, tuning, count)
    except RuntimeError as error:
        bench.say(f"{peer.name}, {_text(tuning)}: {error}")
        return None


def _text(tuning: Tuning) -> str:
    return ", ".join(f"{name}={value}" for name, value in tuning.items())


async def _ours(bench: Bench, item_key: str | None) -> Drain:
    count = _count(bench)
    return await drain(
        bench,
        count,
        partial(fill, count=count, item_key=item_key),
        lambda database: consumer.worker(database.worker),
    )


async def _peer(bench: Bench, peer: Peer, tuning: Tuning, count: int) -> Drain:
    count = int(count * peer.share)
    async with bench.database(empty=True) as database:
        await peer.install(database.admin)
        await peer.fill(database.admin, count)
        async with at_rest(database) as connection:
            before = await usage(connection)
            command = (peer.module, "drain", database.admin, *map(str, tuning.values()))
            async with consumer.running(peer.name, *command, ends=True) as process:
                await process.handled(count, WITHIN)
            used = await usage(connection) - before
            return await measured(
                connection, peer.span, count, process.cpu_per_event(), used.wal_bytes, used.commits
            )


def _result(
    bench: Bench, rounds: dict[str, list[Drain]], tunings: dict[Peer, Tuning], missing: dict[str, str]
) -> Result:
    rates = ours.rates(rounds)
    fastest = max(tunings, key=lambda peer: rates[peer.name])
    keeping = max((peer for peer in tunings if peer.keeps), key=lambda peer: rates[peer.name])
    return Result(
        title="Drain",
        how=_how(bench, tunings, missing),
        table=ours.table("queue", rounds),
        verdicts=[
            _twice(rates, "peer that keeps ended jobs, as we do", keeping),
            _twice(rates, "peer of all", fastest),
        ],
        plots=[Bars("Drain of a full queue, one worker process", "events/s", rates)],
    )


def _twice(rates: Mapping[str, float], of: str, peer: Peer) -> Verdict:
    lead = rates[OURS] / rates[peer.name]
    what = f"one worker process drains at least twice as fast as the fastest {of} ({peer.name})"
    return Verdict(what, f"{figures.ratio(lead)} times", lead >= 2)


def _how(bench: Bench, tunings: dict[Peer, Tuning], missing: dict[str, str]) -> str:
    count = _count(bench)
    peers = "; ".join(
        f"{peer.name} ({int(count * peer.share):,} jobs): {peer.settings}, {_text(tuning)}"
        for peer, tuning in tunings.items()
    )
    left_out = "".join(f" {name} is left out: {reason}." for name, reason in missing.items())
    return f"""
        One worker process empties a queue of {count:,} events of 400 bytes; its handler does nothing.
        Our ended events all stay in history. A peer keeps or deletes its finished jobs, as by default.
        The figures are medians of {bench.rounds} rounds, the queues in turn, each in a fresh database
        after a checkpoint. The rate counts from the first claim to the last completion by the
        database's clock. Surelane is the service as shipped, SURELANE_CONCURRENCY={CONCURRENCY}. Each
        peer runs with the fastest settings that its documentation offers, found before the rounds.
        {peers}.{left_out}
    """

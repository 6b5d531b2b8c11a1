"""Measure what encryption of events costs ingest and the worker."""

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from benchmarks import consumer, figures, ours
from benchmarks.bench import Bench
from benchmarks.fill import KIND
from benchmarks.measures import ingest
from benchmarks.measures.tracing import Run
from benchmarks.programs.ingest_load import request
from benchmarks.result import Bars, Result, Table, Verdict
from surelane.calls import Connection
from surelane_encryption.envelopes import EVENT, DataKey, clear_text
from surelane_encryption.keys import Keyring, new_key

PLAIN, SEALED = "not encrypted", "encrypted"
INGEST, IDLE, RESULTS = (
    "ingest",
    "worker, handlers that do nothing",
    "worker, handlers of 10 ms that return a result",
)
BOTH = "from Slack's request to history"
KEY = new_key()
MODES: dict[str, Mapping[str, str]] = {
    PLAIN: {},
    SEALED: {"SURELANE_ENCRYPTION_KEYS": KEY, "SURELANE_ENCRYPT_EVENTS": "true"},
}
TARGET = 0.85
SLOTS = 100
DIFFERENT = 200
"""Events that are repeated to fill the queue."""

_FILL = """
    insert into agent.event (event_ts, vt, event, kind, head, lane)
    select t, t, ($1::jsonb[])[1 + i % cardinality($1)], $2, true, agent.lane_in(0, null)
    from generate_series(0, $3 - 1) as i
    cross join lateral (select clock_timestamp() - make_interval(secs => ($3 - i) / 1000.0)) as event (t)
"""

Load = Callable[[Bench, Mapping[str, str]], Awaitable[Run]]


async def measure(bench: Bench) -> Result:
    """Load each service without and with encryption, in turn and in both orders."""
    loads: dict[str, Load] = {
        INGEST: partial(_ingest, bench.size(15_000, 2_000)),
        IDLE: partial(_drain, "counting", ours.CONCURRENCY, bench.size(40_000, 8_000)),
        RESULTS: partial(_drain, "returning", SLOTS, bench.size(20_000, 4_000)),
    }
    rounds: dict[tuple[str, str], list[Run]] = {}
    for nth in range(bench.rounds):
        for load, run in loads.items():
            for mode in MODES if nth % 2 == 0 else reversed(MODES):
                done = await run(bench, MODES[mode])
                rounds.setdefault((load, mode), []).append(done)
                bench.say(
                    f"round {nth + 1} of {bench.rounds}: {load}, {mode}: {figures.rate(done.rate)} events/s"
                )
    return _result(bench, rounds)


async def _ingest(count: int, bench: Bench, settings: Mapping[str, str]) -> Run:
    done = await ingest.load_once(bench, ingest.STORING, count, settings)
    return Run(ingest.sent(count), done.rate, done.cpu)


async def _drain(handlers: str, slots: int, count: int, bench: Bench, settings: Mapping[str, str]) -> Run:
    async def stored(connection: Connection) -> None:
        await connection.execute("insert into agent.kind (kind) values ($1) on conflict do nothing", KIND)
        await connection.execute(_FILL, await _events(connection, sealed=bool(settings)), KIND, count)

    done = await ours.drain(
        bench,
        count,
        stored,
        lambda database: consumer.worker(database.worker, handlers, concurrency=slots, **settings),
    )
    return Run(count, done.rate, done.cpu)


async def _events(connection: Connection, *, sealed: bool) -> list[str]:
    """Return events as ingest stores them: of one workspace, with the kind of the benchmarks' handlers."""
    texts = [request(number, "SEALED").partition(b"\r\n\r\n")[2].decode() for number in range(DIFFERENT)]
    if not sealed:
        return texts
    key = DataKey.new("T0")
    wrapped = Keyring([KEY]).seal(key.raw, key.place())
    await connection.execute("select agent.add_data_key($1, $2, $3)", key.workspace, key.id, wrapped)
    return [key.seal(text, clear_text(json.loads(text)), EVENT) for text in texts]


def _result(bench: Bench, rounds: dict[tuple[str, str], list[Run]]) -> Result:
    rates = {key: figures.median([run.rate for run in runs]) for key, runs in rounds.items()}
    shares = {load: rates[load, SEALED] / rates[load, PLAIN] for load, _ in rounds}
    # An event goes through both services, one after the other on the same cores.
    spent = {mode: 1 / rates[INGEST, mode] + 1 / rates[RESULTS, mode] for mode in MODES}
    shares[BOTH] = spent[PLAIN] / spent[SEALED]
    columns = ("load", "events/s", "lowest…highest", "of the rate without", "CPU per event")
    rows = [_row(*key, runs, rates[key] / rates[key[0], PLAIN]) for key, runs in rounds.items()]
    return Result(
        title="Encryption",
        how=f"""
            Each load runs without encryption and with SURELANE_ENCRYPT_EVENTS, in turn and in both
            orders. Ingest gets
            signed requests over {ingest.CONNECTIONS} connections. The worker drains a queue of the
            same requests' events, as ingest stores them in that mode. Its handlers do nothing and have
            {ours.CONCURRENCY} slots; or they take 10 ms, less than a call of Slack's API, read the
            payload, return what was said, and have {SLOTS} slots.
            "{BOTH}" adds the time that an event takes ingest at full speed to the time that it takes
            the worker. The figures are medians of {bench.rounds} rounds. The CPU is that of the
            service's process.
        """,
        table=Table(columns, rows),
        verdicts=[
            Verdict(f"{load}: at least {TARGET} of the rate without", figures.ratio(share), share >= TARGET)
            for load, share in shares.items()
        ],
        plots=[Bars("Rate with encryption, of the rate without", "", shares)],
    )


def _row(load: str, mode: str, runs: list[Run], share: float) -> tuple[str, ...]:
    rates = [run.rate for run in runs]
    return (
        f"{load}: {mode}",
        figures.rate(figures.median(rates)),
        figures.spread(rates),
        figures.ratio(share),
        figures.microseconds(figures.median([run.cpu for run in runs])),
    )

"""The peers that are measured beside our queue."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from benchmarks.peers import awa, graphile, pgqueuer, procrastinate
from benchmarks.peers.missing import MissingError

Insert = Callable[[int], Awaitable[object]]
"""Enqueues one numbered job."""

Inserting = Callable[[str], AbstractAsyncContextManager[Insert]]

Tuning = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Peer:
    """A queue that is measured beside ours; ``python -m module drain|listen URI [TUNING…]`` runs its worker."""

    name: str
    settings: str
    """What it always runs with, for the reader."""

    tunings: Sequence[Tuning]
    """What its documentation says to tune, in the values worth trying: the fastest of them counts."""

    module: str
    install: Callable[[str], Awaitable[None]]
    """Creates its schema in an empty database."""

    fill: Callable[[str, int], Awaitable[None]]
    """Enqueues that many jobs, with payloads as large as ours."""

    span: str
    """A query: seconds from the first job's start to the last one's end, and how many were completed."""

    share: float
    """How many jobs it is given for each of ours: a slow one would take the time of all the others."""

    keeps: bool = True
    """Whether a job that ended stays in the database, as a row of its own or of a log."""

    inserting: Inserting | None = None
    """For its latency; ``None`` where only its drain is measured."""

    prepare: Callable[[], Awaitable[None]] | None = None
    """Has what no requirements file brings; raises MissingError."""


PEERS = (
    Peer(
        name="PgQueuer",
        settings=pgqueuer.SETTINGS,
        tunings=pgqueuer.TUNINGS,
        module="benchmarks.peers.pgqueuer",
        install=pgqueuer.install,
        fill=pgqueuer.fill,
        inserting=pgqueuer.inserting,
        span=pgqueuer.SPAN,
        share=1.0,
    ),
    Peer(
        name="graphile-worker",
        settings=graphile.SETTINGS,
        tunings=graphile.TUNINGS,
        module="benchmarks.peers.graphile",
        install=graphile.install,
        fill=graphile.fill,
        span=graphile.SPAN,
        share=1.0,
        keeps=False,
        prepare=graphile.prepare,
    ),
    Peer(
        name="awa",
        settings=awa.SETTINGS,
        tunings=awa.TUNINGS,
        module="benchmarks.peers.awa",
        install=awa.install,
        fill=awa.fill,
        span=awa.SPAN,
        share=0.2,
    ),
    Peer(
        name="procrastinate",
        settings=procrastinate.SETTINGS,
        tunings=procrastinate.TUNINGS,
        module="benchmarks.peers.procrastinate",
        install=procrastinate.install,
        fill=procrastinate.fill,
        inserting=procrastinate.inserting,
        span=procrastinate.SPAN,
        share=0.05,
    ),
)


async def at_hand() -> tuple[list[Peer], dict[str, str]]:
    """The peers that can run on this machine, and of each of the others why not."""
    peers, missing = [], {}
    for peer in PEERS:
        try:
            if peer.prepare:
                await peer.prepare()
        except MissingError as error:
            missing[peer.name] = str(error)
        else:
            peers.append(peer)
    return peers, missing

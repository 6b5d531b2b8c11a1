"""List the peers that are measured beside our queue."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from benchmarks.peers import awa, graphile, pgqueuer, procrastinate
from benchmarks.peers.missing import MissingError

Insert = Callable[[int], Awaitable[object]]
"""A function that enqueues one numbered job."""

Inserting = Callable[[str], AbstractAsyncContextManager[Insert]]

Tuning = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Peer:
    """A queue that is measured beside ours. ``python -m module drain|listen URI [TUNING…]`` runs its worker."""

    name: str
    settings: str
    """Its fixed settings, as text for the page."""

    tunings: Sequence[Tuning]
    """The settings that its documentation says to tune, with the values to try. The fastest counts."""

    module: str
    install: Callable[[str], Awaitable[None]]
    """Creates its schema in an empty database."""

    fill: Callable[[str, int], Awaitable[None]]
    """Enqueues a number of jobs, with payloads as large as ours."""

    span: str
    """A query for the seconds from the first job's start to the last job's end, and the number of completed jobs."""

    share: float
    """Its number of jobs for each of ours. A slow peer gets fewer, so that it does not take most of the time."""

    keeps: bool = True
    """Whether it keeps ended jobs in the database, as rows of their own or in a log."""

    inserting: Inserting | None = None
    """Enqueues jobs for the measure of latency; ``None`` if only its drain is measured."""

    prepare: Callable[[], Awaitable[None]] | None = None
    """Installs programs that no requirements file has; raises MissingError."""


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
    """Return the peers that can run on this machine, and for each other the reason why not."""
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

"""When a watcher takes workers for dead: the database is real, the watcher's clock is the test's."""

from datetime import timedelta

import pytest

from surelane.calls import Connection
from surelane.errors import DatabaseUnavailable
from surelane_service.engine import Engine
from surelane_service.fleet import WorkerSessions
from surelane_worker.sessions import ALONE, JITTER, LOOK, OUTAGE, SessionWatcher
from tests.sql.queue_steps import claim, enqueue
from tests.sql.test_one_bad_item import ON, REFUSED

GRACE = 5.0


class Restarted(Engine):
    """An engine whose server can be away, or be another one."""

    away = False
    restarts = 0

    async def watch_sessions(self, name: str) -> WorkerSessions:
        if self.away:
            raise DatabaseUnavailable("away")
        seen = await super().watch_sessions(name)
        since = seen.server_since + timedelta(seconds=self.restarts)
        return WorkerSessions(seen.lost, seen.known, since)


class Post:
    """A watcher, with its engine and its clock."""

    def __init__(self, connection: Connection) -> None:
        self.now = 0.0
        self.woken = False
        self.engine = Restarted(connection)
        self._connection = connection
        self.watcher = SessionWatcher(self.engine, "me", timedelta(seconds=5), self._woken, lambda: self.now)

    def _woken(self) -> None:
        self.woken = True

    async def looks(self, *, at: float) -> list[str]:
        """Look at a moment; return the workers that have been taken for dead."""
        self.now = at
        self.pause = await self.watcher.look()
        rows = await self._connection.fetch(
            "select name from agent.worker where died_at is not null order by name"
        )
        return [row["name"] for row in rows]

    async def lose(self, *names: str) -> None:
        """Add workers whose sessions are gone: no lock has a key below one."""
        await self._connection.executemany(
            "insert into agent.worker (name, kinds, version, session) values ($1, '{}', '', $2)",
            [(name, -number) for number, name in enumerate(names)],
        )


@pytest.fixture
async def post(queue: Connection) -> Post:
    """A watcher with an open session, in a fleet of its own."""
    await Engine(queue).open_session("me", "")
    return Post(queue)


async def test_a_lost_worker_is_dead_after_the_grace(post: Post) -> None:
    assert (await post.looks(at=0), post.pause) == ([], ALONE), "it is alone"
    await post.lose("lost")
    assert (await post.looks(at=1), post.pause) == ([], LOOK)
    assert (await post.looks(at=2), post.pause) == ([], LOOK)
    assert (await post.looks(at=5.5), post.pause) == ([], 0.5)
    assert await post.looks(at=6) == ["lost"]


async def test_a_worker_whose_row_refuses_keeps_no_other_from_its_rescue(
    post: Post, queue: Connection
) -> None:
    await queue.execute(f"{REFUSED}; {ON.format('update on agent.worker')}")
    try:
        await post.lose("bad", "good")
        assert [await post.looks(at=at) for at in range(0, 20, 2)][-1] == ["good"]
    finally:
        await queue.execute("drop function public.refuse() cascade")
    assert await post.looks(at=21) == ["bad", "good"]


@pytest.mark.parametrize("outage", ["restart", "restart unseen", "away", "frozen", "own session"])
async def test_after_an_outage_a_grace_begins_anew_and_is_longer(outage: str, post: Post) -> None:
    """Of the database, which is away or has started again, of the watcher itself, or of its own session."""
    await post.lose("lost")
    assert await post.looks(at=0) == await post.looks(at=4) == []
    began = 30 if outage == "frozen" else 4.5
    if outage.startswith("restart"):
        post.engine.restarts += 1
    if outage == "restart unseen":
        post.watcher._due = None  # noqa: SLF001 - as `run` does while it has no position
    if outage == "away":
        post.engine.away = True
        await post.looks(at=4.4)
        post.engine.away = False
    if outage == "own session":
        post.watcher.disturbed()  # its loss of theirs counts from the first look
    for late in range(0, int(OUTAGE), 5):
        assert await post.looks(at=began + late) == []
    assert await post.looks(at=began + OUTAGE) == ["lost"]
    await post.lose("another")
    over = began + OUTAGE + GRACE
    await post.looks(at=over)
    assert "another" in await post.looks(at=over + GRACE), "the outage is over"


async def test_where_most_sessions_are_lost_at_once_they_have_longer(post: Post) -> None:
    await post.lose("a", "b", "c")
    for at in (0, 3, 6, 9):
        assert await post.looks(at=at) == []
    assert await post.looks(at=OUTAGE) == ["a", "b", "c"]


async def test_few_look_and_news_of_a_worker_ends_the_pause_of_one_that_is_alone(queue: Connection) -> None:
    """The pauses end at once here, until there is no more news."""
    watching = [False, True, True]
    pauses: list[float] = []

    class NoNewsError(Exception):
        pass

    async def news(within: float) -> None:
        pauses.append(within)
        if not watching:
            raise NoNewsError

    await Engine(queue).open_session("me", "")
    watcher = SessionWatcher(
        Engine(queue),
        "me",
        timedelta(seconds=GRACE),
        lambda: None,
        watches=lambda: watching.pop(0),
        news=news,
    )
    with pytest.raises(NoNewsError):
        await watcher.run()
    assert len(pauses) == 3
    assert all(ALONE <= pause <= ALONE * (1 + JITTER) for pause in pauses)


async def test_locked_claims_end_at_a_later_look(post: Post, queue: Connection, other: Connection) -> None:
    await post.lose("lost")
    identity = await enqueue(queue, "mail")
    await claim(queue, "mail", worker="lost")
    running = "select vt > agent.clock() from agent.event where id = $1"
    await post.looks(at=0)
    async with other.transaction():
        await other.execute("select from agent.event for update")
        assert await post.looks(at=5) == [], "it is watched until its claims have ended"
        assert (await queue.fetchval(running, identity), post.woken) == (True, False)
        await post.looks(at=6)
        assert post.pause < ALONE, "no other worker is left to watch, but there is more to end"
    assert await post.looks(at=7) == ["lost"]
    assert (await queue.fetchval(running, identity), post.woken) == (False, True)

"""Defects, most of which the project once had, as changes of today's code. The simulation has to find them all."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg

from surelane import calls, errors
from surelane.calls import Connection
from surelane_service.durations import jittered
from surelane_service.engine import DEAD_FOR
from surelane_service.pool import Listener
from surelane_worker import assembly
from surelane_worker.duties import Sweeper
from surelane_worker.sessions import Introduction
from surelane_worker.slack.notes import Ordinal, SentReplies

Mutant = Callable[[Connection], Awaitable[None]]


def _sql(function: str, old: str, new: str, count: int = 1) -> Mutant:
    """Replace a part of a function of the database, which is there ``count`` times."""

    async def change(admin: Connection) -> None:
        source = await admin.fetchval("select pg_get_functiondef($1::regproc)", f"agent.{function}")
        assert source.count(old) == count, (
            f"agent.{function} has {old!r} {source.count(old)} times: see the mutant"
        )
        await admin.execute(source.replace(old, new))

    return change


def _both(*mutants: Mutant) -> Mutant:
    async def change(admin: Connection) -> None:
        for mutant in mutants:
            await mutant(admin)

    return change


async def _refused_settles(_: Connection) -> None:
    """Take a refusal for the server's state as one for the call itself."""
    translate = calls.translated

    def translated(error: Exception, *, uncertain: bool = False) -> errors.SurelaneError:
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            return errors.InvalidInput(str(error), "25006")
        return translate(error, uncertain=uncertain)

    calls.translated = translated


async def _late_limits(_: Connection) -> None:
    """Declare limits with the first announcement, after the first claim."""

    async def bound(self: Introduction, engine: Any) -> None: ...

    Introduction.bound = bound  # type: ignore[method-assign]


async def _rare_rescues(_: Connection) -> None:
    """Look for silent workers as rarely as they count as dead."""
    rescue, due = Sweeper._rescue, WeakKeyDictionary[Sweeper, float]()  # noqa: SLF001 - a defect is put into it

    async def rarely(self: Sweeper) -> None:
        now = asyncio.get_running_loop().time()
        if now >= due.get(self, 0.0):
            due[self] = now + jittered(DEAD_FOR)
            await rescue(self)

    Sweeper._rescue = rarely  # type: ignore[method-assign]  # noqa: SLF001 - likewise


async def _blind_idlers(_: Connection) -> None:
    """Let polls and claims wait as long as other statements, and let a slow poll prove nothing."""

    async def prove(self: Listener) -> None: ...

    assembly.CLAIM_TIMEOUT = assembly.STATEMENT_TIMEOUT
    Listener.prove = prove  # type: ignore[method-assign]


async def _repeated_questions(_: Connection) -> None:
    """Never find in Slack what was posted already."""

    async def look(*_: object) -> dict[Ordinal, str]:
        return {}

    SentReplies.look = look  # type: ignore[assignment]


MUTANTS: dict[str, Mutant] = {
    "skipped-members": _sql("take_members", "if _followed then", "if false then"),
    "late-limits": _late_limits,
    "kept-claims": _sql("release_unknown", "e.attempts > 0 and", "false and"),
    "kept-keys": _sql("enqueue_job", "where e.id = _found.id and _limit_key", "where false and _limit_key"),
    "idle-heads": _sql("free_groups", "and m.retrying and", "and false and"),
    "early-retirement": _sql("retire_worker", "if exists (", "if false and exists ("),
    "future-starts": _both(
        _sql("limit_room", "began.at <= _now + _limit.period / 100", "true", count=2),
        _sql("hold_key", "given.at <= _now + _limit.period / 100", "true"),
    ),
    "refused-settles": _refused_settles,
    "rare-rescues": _rare_rescues,
    "blind-idlers": _blind_idlers,
    "repeated-questions": _repeated_questions,
    "changed-answers": _both(
        _sql("send_signal", "if _once then", "if false then"),
        _sql("take_signal", "_now, _now + _timeout, _now)", "_now, _now + _timeout, null)"),
    ),
}
"""By name. Each undoes one mend, and nothing else. The last two were never there: they break what questions promise."""

"""Defects that the project once had, each as a change of today's code. The simulation has to find them all."""

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from surelane import calls, errors
from surelane.calls import Connection
from surelane_worker.sessions import Introduction

Mutant = Callable[[Connection], Awaitable[None]]


def _sql(function: str, old: str, new: str) -> Mutant:
    """Replace a part of a function of the database."""

    async def change(admin: Connection) -> None:
        source = await admin.fetchval("select pg_get_functiondef($1::regproc)", f"agent.{function}")
        assert source.count(old) == 1, f"{function} has no {old!r}"
        await admin.execute(source.replace(old, new))

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


MUTANTS: dict[str, Mutant] = {
    "skipped-members": _sql("take_members", "if _followed then", "if false then"),
    "kept-claims": _sql("release_unknown", "e.attempts > 0 and", "false and"),
    "idle-heads": _sql("free_groups", "and m.retrying and", "and false and"),
    "refused-settles": _refused_settles,
    "late-limits": _late_limits,
}
"""By name."""

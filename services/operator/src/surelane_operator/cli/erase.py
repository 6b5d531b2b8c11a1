"""``surelane erase``: remove what a person, a channel or a workspace wrote, in bounded steps, with a receipt."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer import Option

from surelane.calls import Calls, Connection, Row
from surelane.errors import Conflict
from surelane_operator.api.endpoint import Table
from surelane_operator.audit import Audit, current_actor
from surelane_operator.cli.output import say, show_json, show_table
from surelane_operator.cli.session import Database, ExitCode, Json, failed, run

_EVERY = 2.0
"""Seconds between lines of progress."""
_PAUSE = 0.5
"""Seconds between looks at events that have not ended yet, or that another transaction has locked."""
_PASSES = 3
"""How often it goes over everything while nothing is left but rows that another transaction has locked."""
_LOCKED = "55P03"
_WORDS = {
    "cancelled": "cancelled before",
    "event": "live events",
    "event_hist": "events in history",
    "step": "steps",
    "signal": "signals",
    "cron": "schedules",
    "limit_state": "limits' keys",
    "rule": "rules",
    "model_usage": "days of models' usage",
    "feedback": "ratings",
    "dropped": "notes of dropped deliveries",
    "data_key": "data keys",
    "installation": "sets of tokens",
}
_RECEIPTS = Table(
    "receipts",
    "id=receipt asked_at=asked asked_by=by filter removed finished_at=finished",
    "nothing was ever erased",
)
Told = Callable[[int, int, str], None]
"""Gets how many events were looked at, of about how many, and what is waited for."""


def erase(
    database: Database,
    user: Annotated[str | None, Option(help="A person's id, such as U012AB3CD.")] = None,
    team: Annotated[str | None, Option(help="A workspace's id, such as T012AB3CD.")] = None,
    channel: Annotated[str | None, Option(help="A channel's id, such as C012AB3CD.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Count only. This is the default.")] = False,
    yes: Annotated[bool, Option("--yes", help="Erase. There is no way back.")] = False,
    by: Annotated[str | None, Option(help="Who asks, for the receipt. Default: the name of --as.")] = None,
    receipts: Annotated[bool, Option("--receipts", help="List the erasures so far.")] = False,
    as_json: Json = False,
) -> None:
    """Remove every event in which the given ids stand together, with its steps, signals and results.

    Without --yes it only counts. Live events are cancelled first. An erasure that was interrupted goes on where it
    stopped: give the same ids again. A row that refuses, or stays locked, stops no other: it is named, and the exit
    code is 1. It does not cover events that come after its beginning. Without --channel it also
    takes the Slack tokens of the workspace or person. With --team alone it also destroys the workspace's data key,
    after a minute in which processes still use it.
    """
    if receipts:
        _list(database, as_json=as_json)
        return
    names = {"user": user, "team": team, "channel": channel}
    if not any(names.values()):
        raise failed("give --user, --team or --channel", ExitCode.USAGE)
    if yes and dry_run:
        raise failed("give --yes or --dry-run, not both", ExitCode.USAGE)
    given, told = json.dumps(names), _progress()
    if not yes:
        counts = run(database, lambda changes, _: _previewed(changes.calls, given, told), within=None)
        say(
            f"would remove: {_counted(counts)}\nto erase, repeat the command with --yes",
            {"erased": False, "counts": counts},
            as_json=as_json,
        )
        return
    asker = by or current_actor().name
    receipt = run(database, lambda _, connection: _kept(connection, given, asker, told), within=None)
    left = receipt["counts"].get("left")
    say(_printed(receipt), {"erased": not left} | receipt, as_json=as_json)
    if left:
        raise failed(f"{_named(left)}: repeat the command once these can be removed", ExitCode.FAILED)


def _list(database: str, *, as_json: bool) -> None:
    rows = run(database, lambda changes, _: _receipts(changes.calls))
    for row in rows:
        row["removed"] = _counted(row["counts"])
        if left := row["counts"].get("left"):
            row["removed"] += f"; {_named(left)}"
        row["filter"] = row["filter"] if as_json else ", ".join(row["filter"])
    show_json(rows) if as_json else show_table(_RECEIPTS, rows)


async def _previewed(calls: Calls, given: str, told: Told) -> dict[str, int]:
    """Count by table what an erasure would remove."""
    counts, at, seen, of = Counter[str](), None, 0, 0
    while True:
        step = json.loads(await calls.call("preview_erasure", given, at and json.dumps(at)))
        counts.update(step["counts"])
        seen, of, at = seen + step["seen"], step.get("of", of), step.get("at")
        told(seen, of, "")
        if at is None:
            return dict(counts)


async def _kept(connection: Connection, given: str, by: str, told: Told) -> dict[str, Any]:
    """Erase, and keep that as an action. It does not name whom: its target is the receipt's number."""
    calls, audit = Calls(connection), Audit(connection)
    begun = await calls.row("begin_erasure", given, by)
    assert begun is not None  # noqa: S101 - one row, always
    fields = sorted(name for name, value in json.loads(given).items() if value)
    action = await audit.begin("erase", {"by": by, "filter": fields}, f"erasure {begun['id']}")
    receipt = await _erased(calls, given, begun, told)
    await audit.end(action, {"removed": receipt["counts"]})
    return receipt


async def _erased(calls: Calls, given: str, begun: Row, told: Told) -> dict[str, Any]:
    """Erase, and return the receipt, with the key of its hashes. The database has forgotten that."""
    seen, place, waiting, passes = 0, "", 0, _PASSES
    while place != "done" and passes:
        try:
            step = await calls.row("erase_step", begun["id"], given)
            assert step is not None  # noqa: S101 - as above
            place, waiting, seen = step["place"], step["waiting"], seen + step["seen"]
            if place == "left":
                locked = {*json.loads(step["counts"])["left"].values()} == {_LOCKED}
                passes = passes - 1 if locked else 0
        except Conflict:
            waiting = 1
        key = "for a minute, until no process encrypts with the workspace's data key"
        reason = key if place == "key" else f"for {waiting} that run or are locked" if waiting else ""
        told(seen, begun["about"], reason)
        if waiting and passes:
            await asyncio.sleep(_PAUSE)
    (receipt,) = [each for each in await _receipts(calls) if each["id"] == begun["id"]]
    return receipt | {"key": begun["key"]}


async def _receipts(calls: Calls) -> list[dict[str, Any]]:
    """Return the receipts of the last hundred erasures, newest first. Ids of the filter are hashed."""
    rows = [dict(row) for row in await calls.rows("list_erasures")]
    return [row | {name: json.loads(row[name]) for name in ("filter", "counts")} for row in rows]


def _counted(counts: Mapping[str, int]) -> str:
    """Return counts as words, without those that are zero."""
    said = [f"{counts[name]} {word}" for name, word in _WORDS.items() if counts.get(name)]
    return ", ".join(said) or "nothing"


def _named(left: Mapping[str, str]) -> str:
    """Return what is left, and why: the first ten rows."""
    said = [
        f"{name} (locked)" if why == _LOCKED else f"{name} (SQLSTATE {why})" for name, why in left.items()
    ]
    return f"left: {', '.join(said[:10])}" + (f" and {len(said) - 10} more" if len(said) > 10 else "")


def _printed(receipt: Mapping[str, Any]) -> str:
    filters = "\n".join(f"{name} sha256 {hashed}" for name, hashed in receipt["filter"].items())
    at = receipt["finished_at"]
    finished = "not finished" if at is None else f"finished at {at:%Y-%m-%d %H:%M:%S %Z}"
    return (
        f"erased: {_counted(receipt['counts'])}\n\n"
        f"receipt {receipt['id']}, asked for by {receipt['asked_by']} at {receipt['asked_at']:%Y-%m-%d %H:%M:%S %Z},"
        f" {finished}\n{filters}\nkey {receipt['key']}\n"
        "Removed rows stay in PostgreSQL's files until vacuum, and until freed space is written anew.\n"
        f"Keep the key{'' if at is None else ': the database has forgotten it'}."
        " With it, sha256 of KEY:user:ID proves whose erasure this was."
    )


def _progress() -> Told:
    """Return a function that prints progress to standard error, every two seconds."""
    last = time.monotonic()

    def told(seen: int, of: int, waiting: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            rest = f"; waiting {waiting}" if waiting else ""
            typer.echo(f"looked at {seen:,} of about {of:,} events{rest}", err=True)

    return told

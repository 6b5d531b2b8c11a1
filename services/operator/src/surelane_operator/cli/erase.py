"""``surelane erase``: remove what a person, a channel or a workspace wrote."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated

import typer
from typer import Option

from surelane_operator.audit import this_user
from surelane_operator.cli.output import columns, say, show_json, show_table
from surelane_operator.cli.session import Database, ExitCode, Json, failed, run
from surelane_operator.erasing import Erasing, Progress, Receipt

_EVERY = 2.0
"""Seconds between lines of progress."""
_WORDS = {
    "cancelled": "cancelled before",
    "event": "live events",
    "event_hist": "events in history",
    "step": "steps",
    "signal": "signals",
    "cron": "schedules",
    "limit_state": "limits' keys",
    "feedback": "ratings",
    "data_key": "data keys",
    "installation": "sets of tokens",
}
_RECEIPTS = columns(
    *("id=receipt", "asked_at=asked", "asked_by=by", "filter", "removed", "finished_at=finished")
)


def erase(
    database: Database,
    user: Annotated[str | None, Option(help="A person's id, such as U012AB3CD.")] = None,
    team: Annotated[str | None, Option(help="A workspace's id, such as T012AB3CD.")] = None,
    channel: Annotated[str | None, Option(help="A channel's id, such as C012AB3CD.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Count only. This is the default.")] = False,
    yes: Annotated[bool, Option("--yes", help="Erase. There is no way back.")] = False,
    by: Annotated[str | None, Option(help="Who asks, for the receipt. Default: you.")] = None,
    receipts: Annotated[bool, Option("--receipts", help="List the erasures so far.")] = False,
    as_json: Json = False,
) -> None:
    """Remove every event in which the given ids stand together, with its steps, signals and results.

    Without --yes it only counts. Live events are cancelled first. An erasure that was interrupted goes on where it
    stopped: give the same ids again. It does not cover events that come after its beginning. Without --channel it also
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
    told = _progress()
    if not yes:
        counts = run(database, lambda _, connection: Erasing(connection).preview(names, told), within=None)
        say(
            f"would remove: {_counted(counts)}\nto erase, repeat the command with --yes",
            {"erased": False, "counts": counts},
            as_json=as_json,
        )
        return
    asker = by or this_user()
    receipt = run(database, lambda _, connection: Erasing(connection).erase(names, asker, told), within=None)
    say(_printed(receipt), {"erased": True} | asdict(receipt), as_json=as_json)


def _list(database: str, *, as_json: bool) -> None:
    found = run(database, lambda _, connection: Erasing(connection).receipts())
    rows = [asdict(receipt) | {"removed": _counted(receipt.counts)} for receipt in found]
    for row in rows:
        del row["key"]
        row["filter"] = row["filter"] if as_json else ", ".join(row["filter"])
    show_json(rows) if as_json else show_table(_RECEIPTS, rows, empty="nothing was ever erased")


def _counted(counts: Mapping[str, int]) -> str:
    """Return counts as words, without those that are zero."""
    said = [f"{counts[name]} {word}" for name, word in _WORDS.items() if counts.get(name)]
    return ", ".join(said) or "nothing"


def _printed(receipt: Receipt) -> str:
    filters = "\n".join(f"{name} sha256 {hashed}" for name, hashed in receipt.filter.items())
    return (
        f"erased: {_counted(receipt.counts)}\n\n"
        f"receipt {receipt.id}, asked for by {receipt.asked_by} at {receipt.asked_at:%Y-%m-%d %H:%M:%S %Z},"
        f" finished at {receipt.finished_at:%Y-%m-%d %H:%M:%S %Z}\n{filters}\nkey {receipt.key}\n"
        "Removed rows stay in PostgreSQL's files until vacuum, and until freed space is written anew.\n"
        "Keep the key: the database has forgotten it. With it, sha256 of KEY:user:ID proves whose erasure this was."
    )


def _progress() -> Callable[[Progress], None]:
    """Return a function that prints progress to standard error, every two seconds."""
    last = time.monotonic()

    def told(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            waiting = f"; waiting for {progress.waiting} that run or are locked" if progress.waiting else ""
            if progress.key_in_use:
                waiting = "; waiting for a minute, until no process encrypts with the workspace's data key"
            typer.echo(f"looked at {progress.seen:,} of about {progress.of:,} events{waiting}", err=True)

    return told

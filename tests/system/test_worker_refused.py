"""A handler's result that cannot be settled fails its attempt and nothing else."""

import json

from surelane.calls import Connection
from tests.system.worker import claimed, ended, enqueue, worker

REFUSED = {
    "payload": ("attempts_exhausted", "UUID is not JSON"),
    "naive run_at": ("attempts_exhausted", "has no time zone"),
    "no job": ("attempts_exhausted", "takes jobs, not str"),
    "no continuation": ("attempts_exhausted", "takes jobs, not NoneType"),
    "fan-out result": ("result_refused", "is not JSON"),
    "refused by the database": ("continuation_refused", "max_attempts"),
    "not a number": ("attempts_exhausted", "not JSON compliant"),
    "retry": ("attempts_exhausted", "longer than 3650 days"),
    "snooze": ("attempts_exhausted", "longer than 3650 days"),
    "naive await": ("attempts_exhausted", "has no time zone"),
    "await nothing": ("attempts_exhausted", "datetime is needed"),
    "await the end of time": ("attempts_exhausted", "out of range"),
    "discard": ("a\ufffdb\ufffd", "a\ufffdb\ufffd"),
    "unprintable discard": ("(UnprintableError without text)", "without text"),
    "unprintable": ("attempts_exhausted", "without text"),
    "treacherous": ("attempts_exhausted", "treacherous"),
    "interrupt": ("attempts_exhausted", ""),
}


async def test_an_outcome_that_cannot_be_settled_fails_its_attempt_and_nothing_else(
    database: str, connection: Connection
) -> None:
    async with worker(database, SURELANE_CONCURRENCY="50") as running:
        innocent = await enqueue(connection, "sleep", {"seconds": 2}, max_attempts=1)
        await claimed(connection, innocent)
        bad = {name: await enqueue(connection, "bad-outcome", {"outcome": name}) for name in REFUSED}
        rows = {name: await ended(connection, identity) for name, identity in bad.items()}
        assert (await ended(connection, innocent))["outcome"] == "completed"
        output = [line for line in running.output if "crashed" in line]
    assert {name: row["outcome"] for name, row in rows.items()} == dict.fromkeys(REFUSED, "failed")
    assert {name: row["reason"] for name, row in rows.items()} == {
        name: reason for name, (reason, _) in REFUSED.items()
    }
    for name, (reason, message) in REFUSED.items():
        errors = json.loads(rows[name]["errors"])
        assert len(errors) == (3 if reason == "attempts_exhausted" else 1), name
        assert message in errors[-1]["message"], name
    assert output == []

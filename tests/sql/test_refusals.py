"""What makes no sense is refused: the error says what is wrong, and quotes no payload."""

import json

import asyncpg
import pytest

from surelane.calls import Connection

SECRET = "'{\"secret\": 1}'"
NO_IDS: tuple[dict[str, str], ...] = ({}, {"user": ""}, {"user": "U%"}, {"user": "U''"}, {"user": "x" * 51})
ERASURES = (("preview", ")"), ("begin", ", null)"))
NO_TIMESTAMPS = {
    "text": (
        *("", " ", "abc", "1469470591.75.1", "1e9", "0x10", "NaN", "Infinity", "٣", "1469470591,5", "-" * 50),
        "1469470591759709",
    ),
    "numeric": ("NaN", "Infinity", "-Infinity", "1469470591759", "-300000000000", "1469470591759709"),
}
REFUSED = {
    "has 1 to 200 characters": (
        *("enqueue('')", f"enqueue('{'x' * 201}')", "enqueue(null)"),
        f"set_cron('', 'tick', '* * * * *', now(), {SECRET})",
        f"set_cron('n', '', '* * * * *', now(), {SECRET})",
    ),
    "a job cannot run at infinity": ["enqueue('job', _run_at => 'infinity')"],
    "before the year 10000": ["enqueue('job', _run_at => '294000-01-01')"],
    "between the years 1 and 10000": [
        f"enqueue('job', _deadline => '{each}')" for each in ("294000-01-01", "4000-01-01 BC")
    ],
    "cannot be rescheduled to": [
        f"reschedule_event('1', '{each}')" for each in ("294000-01-01", "infinity", "-infinity")
    ],
    "max_attempts is at least 1": (
        "enqueue('job', _run_at => '-infinity', _max_attempts => 0)",
        f"enqueue('job', {SECRET}, _max_attempts => -1)",
    ),
    "skip, replace or earliest": ["enqueue('job', _on_duplicate => 'explode')"],
    "none, one, all or a number": [f"set_cron('n', 'a', '* * * * *', now(), {SECRET}, _catch_up => 'never')"],
    "a schedule has fields": [f"set_cron('n', 'tick', null, now(), {SECRET})"],
    "name a user|an id to erase has": [
        f"{call}_erasure('{json.dumps(names)}'{more}" for call, more in ERASURES for names in NO_IDS
    ],
    "every claim has an outcome: complete": ["settle(array[1::int8], array[1], '{}')"],
    "JSON object": [f"set_cron('c', 'k', '* * * * *', now(), '{each}')" for each in ("[]", "1", "null")],
    "an event is a JSON object": (
        *("insert_event('[]')", "insert_event('\"text\"')", "insert_event('1')", "insert_event('null')"),
        "insert_event(null)",
        *(f"insert_events(array['{{}}', {each}]::jsonb[])" for each in ("'[]'", "'1'", "null")),
    ),
    "^concurrency ": [f"set_limit('job', {each}, null, null, null)" for each in (-1, 10001)],
    "^rate ": [
        f"set_limit('job', null, {each})"
        for each in ("5, null, null", "1000001, '1s', null", "5, '2 days', null", "null, '1m', null")
    ],
    "^per ": ["set_limit('job', null, null, null, 'team')"],
    "priority is 0, 1, 2 or 3": (
        *(
            f"""enqueue_jobs('[{{"kind": "a"}}, {{"kind": "a", "priority": {each}}}]')"""
            for each in ("-1", "4", "1.5", '"high"', "true", "[1]")
        ),
        "set_cron('n', 'k', '* * * * *', now(), '{}', 'UTC', 'one', false, 4)",
    ),
    "at least 3 days": [f"drop_history({age})" for age in ("null", "'-1 days'", "'1 day'")],
    "not a Unix timestamp in seconds": [
        f"to_timestamptz('{each}'::{type_})" for type_, texts in NO_TIMESTAMPS.items() for each in texts
    ],
    "has no Unix timestamp": ["from_timestamptz('infinity')"],
}


@pytest.mark.parametrize(("match", "call"), [(match, call) for match in REFUSED for call in REFUSED[match]])
async def test_a_call_that_makes_no_sense_is_refused(queue: Connection, match: str, call: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=match) as error:
        await queue.execute(f"select agent.{call}")
    assert "secret" not in f"{error.value} {error.value.detail} {error.value.hint}"
    assert await queue.fetchval("select count(*) from agent.event") == 0

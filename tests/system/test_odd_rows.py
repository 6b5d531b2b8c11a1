"""One row that somebody wrote by hand hides no other, nor itself: in lists, on the page, through the API."""

import json

from surelane.calls import Connection
from surelane.queue import Queue
from tests.databases import as_role
from tests.system.operators import emptied, page, person
from tests.system.test_cli import Command

connection = emptied
LIVE = """
vt = 'infinity'; vt = '294000-01-01'; vt = '-infinity'; event_ts = '294000-01-01'; event_ts = '4000-01-01 BC'
enqueued_at = '294000-01-01'; deadline = '294000-01-01'; traceparent = 'nonsense'
event = '"text"'; event = '[1]'; event = 'null'
errors = '{}'; errors = '[1]'; errors = '[{"at": "never", "type": 1}]'; errors = '9'
changes = '{}'; changes = '[1]'; changes = '[{"action": "moved"}, {"at": "never"}]'
changes = '[{"action": "rescheduled", "at": "2026-01-01", "from": 1, "to": null}]'
claimed = '{infinity,NULL}'; claimed = '{294000-01-01}'; claimed = '{{now},{now}}'
notes = '[]'; notes = '1'; notes = '{"streams": 1, "replies": [], "version": 2}'
"""
ENDED = """
finished_at = '294000-01-01'; vt = '4000-01-01 BC'; result = '{"a": null}'; errors = '[null]'; enqueued_at = '-infinity'
"""
TOKEN = "t" * 40


async def test_rows_of_another_shape_are_shown_among_the_others(
    shared_database: str, connection: Connection
) -> None:
    made = {}
    good = await Queue(connection).enqueue("mail", {"n": 1})
    for table, changes in (("event", LIVE), ("event_hist", ENDED)):
        for change in changes.strip().replace("\n", ";").split(";"):
            identity = await Queue(connection).enqueue("mail", {"n": 2})
            made[identity] = f"{table}: {change}"
            if table == "event_hist":
                await connection.execute("select agent.delete_event($1)", identity)
            await connection.execute(f"update agent.{table} set {change} where id = {identity}")
    operator = as_role(shared_database, "surelane_operator")
    surelane = Command(operator)
    listed, stats, doctor = await surelane.each("events list --limit 100 --json", "stats", "doctor")
    assert {job["id"] for job in listed.json} == {good, *made}
    assert (stats.code, "Error" in doctor.out + doctor.err) == (0, False)
    async with page(operator, SURELANE_API_TOKEN=TOKEN) as url, person(url) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        _, text = await client.get("/v1/jobs?limit=100")
        assert {job["id"] for job in json.loads(text)["jobs"]} == {good, *made}
        for identity, change in made.items():
            assert (await client.get(f"/v1/jobs/{identity}"))[0] == 200, change
            for shown in await surelane.each(f"events show {identity}", f"events why {identity}"):
                assert (shown.code, shown.err) == (0, ""), change

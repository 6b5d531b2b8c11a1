"""An erasure leaves no trace of what a person, a channel or a workspace wrote, and touches nothing else."""

import asyncio
import json
from datetime import timedelta
from random import Random
from string import ascii_uppercase, digits
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from surelane.codec import KeyDestroyedError
from surelane.jobs import Continuation, Job
from surelane_bolt.installation_store import AsyncInstallations
from surelane_encryption.data_keys import UNUSED_AFTER, DataKeys
from surelane_encryption.keys import Keyring, new_key
from surelane_encryption.sealing import Sealing
from surelane_service.installations import Installations, Owner
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import envelope, pair
from tests.sql.test_installations import installation
from tests.sql.test_queue_foreign_locks import stays_open

SECRET = "the-words-of-that-person"
TEXTS = """
select c.table_name::text, c.column_name::text from information_schema.columns as c
join information_schema.tables as t using (table_schema, table_name)
where c.table_schema = 'agent' and t.table_type = 'BASE TABLE'
and (c.data_type in ('text', 'json', 'jsonb', 'character varying') or c.data_type = 'ARRAY')
"""


async def traces(queue: Connection, *words: str) -> list[str]:
    """Return the columns of schema agent in which one of the words stands."""
    found = []
    for table, column in await queue.fetch(TEXTS):
        for word in words:
            count = await queue.fetchval(
                f"select count(*) from agent.{table} where strpos({column}::text, $1) > 0", word
            )
            if count:
                found.append(f"{table}.{column}")
    return found


async def erase(queue: Connection, limit: int = 500, **names: str) -> dict[str, Any]:
    """Erase. Return what was removed, and under ``left`` what refused it."""
    given = json.dumps(names)
    begun = await do.only_row(queue, "select * from agent.begin_erasure($1, 'ann')", given)
    while True:
        step = await do.only_row(
            queue, "select * from agent.erase_step($1, $2, $3)", begun["id"], given, limit
        )
        if step["place"] in ("done", "left"):
            counts: dict[str, Any] = json.loads(step["counts"])
            return {name: count for name, count in counts.items() if count}


async def preview(queue: Connection, limit: int = 500, **names: str) -> dict[str, int]:
    at, total = None, dict[str, int]()
    look = "select agent.preview_erasure($1, $2, $3)"
    while True:
        step = json.loads(await queue.fetchval(look, json.dumps(names), at and json.dumps(at), limit))
        for name, count in step["counts"].items():
            total[name] = total.get(name, 0) + count
        at = step.get("at")
        if at is None:
            return {name: count for name, count in total.items() if count}


async def begin(queue: Connection, given: str) -> int:
    begun: int = await queue.fetchval("select id from agent.begin_erasure($1, 'ann')", given)
    return begun


async def written(queue: Connection, number: int, **inner: Any) -> int:
    return await do.insert(queue, envelope(f"Ev{number}", text=SECRET, user="U7", channel="C7", **inner))


async def test_nothing_of_a_person_is_left_and_everything_of_others_is(queue: Connection) -> None:
    pending = await written(queue, 1)
    completed, failed, running = [await written(queue, n) for n in (2, 3, 4)]
    job = await do.enqueue(
        queue,
        payload=json.dumps({"for": "U7", "text": SECRET}),
        item_key="i",
        dedupe_key="d:U7",
        group_key="g:U7",
    )
    other = await do.insert(queue, envelope("Ev9", user="U77", text="others"))
    rows = {row["id"]: row for row in await do.claim(queue, "slack.app_mention")}
    await queue.execute(
        "select agent.store_step($1, $2, 'a', 1, null, $3, '[]', '1 s', true)",
        completed,
        rows[completed]["claim"],
        json.dumps({"said": SECRET}),
    )
    await queue.execute("select agent.send_signal($1, 'go', $2, false, 'U7')", completed, json.dumps(SECRET))
    await do.complete(queue, pair(rows[completed]), results=[json.dumps({"said": SECRET})])
    await do.fail(queue, pair(rows[failed]), errors=[json.dumps({"message": SECRET})], final=True)
    await do.complete(queue, pair(rows[other]), results=['{"kept": true}'])
    await queue.execute("select agent.rerun_events(array[$1::int8])", failed)
    await queue.execute("select agent.rerun_as_new($1, null, null)", completed)
    await queue.execute(
        "select agent.set_cron('remind U7', 'job', '* * * * *', now(), $1)", json.dumps({"text": SECRET})
    )
    await queue.execute(
        "insert into agent.request values ($1, 'c', now() + interval '1 minute', $2)", completed, SECRET
    )
    # The worker's handlers run: they are stopped, and the database ends their claims.
    assert {pending, running} <= set(rows)
    assert (await preview(queue, user="U7"))["event"] >= 5
    asked = asyncio.create_task(erase(queue, user="U7"))
    done, _ = await asyncio.wait([asked], timeout=0.5)
    assert not done, "running events are waited for"
    asked.cancel()
    await asyncio.wait([asked])
    await do.advance(queue, timedelta(seconds=11))
    counts = await erase(queue, user="U7")
    assert counts["event_hist"] >= 6
    assert await traces(queue, SECRET, '"U7"', "@U7", ":U7", " U7") == []
    assert await do.live(queue, job) is None
    assert await queue.fetchval("select array_agg(id) from agent.event_hist") == [other]


async def test_ids_combine_and_are_whole_words_and_a_preview_changes_nothing(queue: Connection) -> None:
    both = await do.insert(queue, envelope("Ev1", user="U7", channel="C7"))
    one = await do.insert(queue, envelope("Ev2", user="U7", channel="C8"))
    assert await preview(queue, user="U7", channel="C7") == {"event": 1}
    assert await do.live(queue, both) is not None
    assert await queue.fetchval("select count(*) from agent.erasure") == 0
    assert await erase(queue, user="U7", channel="C7") == {"cancelled": 1, "event_hist": 1}
    assert await do.live(queue, both) is None
    assert await do.live(queue, one) is not None
    assert await erase(queue, team="T1") == {"cancelled": 1, "event_hist": 1}
    said = ["<@U7> hi", "line\nU7", '"U7"', "team:U7:x"]
    gone = [await do.insert(queue, envelope(f"Ev{n}", text=text)) for n, text in enumerate(said)]
    kept = [
        await do.insert(queue, envelope(f"Ev1{n}", text=text)) for n, text in enumerate(["U77", "xU7", "u7"])
    ]
    gone.append(await do.insert(queue, envelope("Ev20", text="what is asked")))
    await queue.execute("""select agent.send_signal($1, 'go', '"ask U7"', false, 'U1')""", gone[-1])
    assert (await preview(queue, user="U7"))["event"] == len(gone)
    await erase(queue, user="U7")
    assert [await do.live(queue, each) is not None for each in gone + kept] == [False] * 5 + [True] * 3


async def test_an_erasure_that_stopped_goes_on_to_one_receipt_in_bounded_steps(queue: Connection) -> None:
    for number in range(6):
        await do.finish(queue, f"Ev{number}", number)
    given = '{"user": "U1"}'
    begun = await do.only_row(queue, "select * from agent.begin_erasure($1, 'ann')", given)
    while await queue.fetchval("select count(*) from agent.event_hist") == 6:
        await queue.execute("select agent.erase_step($1, $2, 2)", begun["id"], given)
    assert await queue.fetchval("select count(*) from agent.event_hist") > 0
    with pytest.raises(asyncpg.InvalidParameterValueError, match="no unfinished erasure"):
        await queue.execute("""select agent.erase_step($1, '{"user": "U2"}')""", begun["id"])
    again = await do.only_row(queue, "select * from agent.begin_erasure($1, 'ann')", given)
    assert (again["id"], again["goes_on"], again["key"]) == (begun["id"], True, begun["key"])
    assert await erase(queue, user="U1") == {"event_hist": 6}
    (receipt,) = await queue.fetch("select * from agent.list_erasures()")
    assert receipt["asked_by"] == "ann"
    assert receipt["finished_at"] is not None
    assert await queue.fetchval("select key is null from agent.erasure")
    assert "U1" not in receipt["filter"]
    hashed = await queue.fetchval("select agent.hashed($1, $2)", given, begun["key"])
    assert receipt["filter"] == hashed, "the printed key proves whose erasure it was"
    for number in range(7):
        await do.finish(queue, f"Ev{number}", 20 * number)
    assert await preview(queue, limit=2, user="U1") == {"event_hist": 7}
    assert await erase(queue, limit=2, user="U1") == {"event_hist": 7}
    assert await queue.fetchval("select count(*) from agent.event_hist") == 0


@pytest.mark.parametrize("closed", [True, False], ids=["a worker closes it", "no worker comes for a minute"])
async def test_what_an_erasure_leaves_open_in_slack_is_closed_and_erased(
    queue: Connection, closed: bool
) -> None:
    """The text of a question may have the person's name, and no id."""
    await written(queue, 1)
    ((identity, claim),) = [(row["id"], row["claim"]) for row in await do.claim(queue, "slack.app_mention")]
    asked = json.dumps({"channel": "C1", "ts": "1.2", "text": SECRET})
    store = "select agent.store_step($1, $2, 'ask:1 asked', 1, null, $3, '[]', '1 s', true)"
    await queue.execute(store, identity, claim, asked)
    await queue.execute("""update agent.event set notes = '{"replies": {"ask:1 asked:0": "1.2"}}'""")
    given = '{"user": "U7"}'
    begun, step = await begin(queue, given), "select * from agent.erase_step($1, $2)"
    await queue.execute(step, begun, given)
    await do.advance(queue, timedelta(seconds=11))
    for _ in range(20):
        row = await do.only_row(queue, step, begun, given)
    assert row["waiting"] == 1, "the job that closes the question is waited for"
    if closed:
        (job,) = await do.claim(queue, "surelane.close")
        assert json.loads(job["event"])["value"]["text"] == SECRET
        await do.complete(queue, pair(job))
    else:
        await do.advance(queue, timedelta(minutes=2))
    await erase(queue, user="U7")
    assert await traces(queue, SECRET, "U7") == []
    assert await preview(queue, user="U7") == {}
    assert await queue.fetchval("select count(*) from agent.event_hist") == 0


async def test_children_go_with_what_they_were_for_and_what_comes_later_stays(queue: Connection) -> None:
    await do.enqueue(queue, "plan", payload='{"user": "U7"}')
    (row,) = await do.claim(queue, "plan")
    await do.continue_with(
        queue, pair(row), [Job("sub", {"text": SECRET})], Continuation("end", {"user": "U7"})
    )
    (child,) = await do.claim(queue, "sub")
    await do.complete(queue, pair(child), results=[json.dumps(SECRET)])
    await erase(queue, user="U7")
    assert await traces(queue, SECRET, "U7") == []
    await written(queue, 1)
    given = '{"team": "T1"}'
    begun = await begin(queue, given)
    later = await written(queue, 2)
    await AsyncInstallations(Installations(queue, Keyring([new_key()]))).async_save(installation("T1"))
    while await queue.fetchval("select place from agent.erase_step($1, $2)", begun, given) != "done":
        pass
    assert await do.live(queue, later) is not None
    assert await queue.fetchval("select count(*) from agent.installation") == 2


async def test_what_is_requeued_goes_and_operators_erase_alone(queue: Connection, connect: Connect) -> None:
    first = await do.finish(queue, "Ev1", 1)
    given = '{"user": "U1"}'
    begun = await begin(queue, given)
    await queue.execute("select agent.erase_step($1, $2)", begun, given)  # the queue is looked through
    await queue.execute("select agent.rerun_events(array[$1::int8])", first)
    await erase(queue, user="U1")
    assert await traces(queue, "U1") == []
    for role in ("surelane_ingest", "surelane_producer"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await preview(await connect(role), user="U1")


@pytest.mark.parametrize("place", ["event", "event_hist"])
async def test_a_transaction_delays_its_rows_alone(queue: Connection, connect: Connect, place: str) -> None:
    locked = await (written(queue, 1) if place == "event" else do.finish(queue, "Ev1", 1))
    await written(queue, 2)
    given = '{"team": "T1"}'
    begun = await begin(queue, given)
    async with stays_open(await connect(), f"select from agent.{place} where id = $1 for update", locked):
        waiting = 0
        while not waiting:
            try:
                step = await queue.fetchrow("select * from agent.erase_step($1, $2)", begun, given)
            except asyncpg.LockNotAvailableError:
                waiting = 1
            else:
                assert step is not None
                assert step["place"] != "done"
                waiting = step["waiting"]
    await erase(queue, team="T1")
    assert await traces(queue, "T1") == []


REFUSALS = {
    "event": ("delete", ["event 1", "event 5"]),
    "event (running)": ("update", ["event 5"]),
    "event_hist": ("delete", ["event 1", "event 3", "event 5"]),
    "step": ("delete", ["event 3"]),
    "rule": ("delete", ["rule"]),
    "cron": ("delete", ["cron"]),
}
REFUSED = """
create function public.refuse() returns trigger language plpgsql as $$ begin
if old::text ~ 'keep' then raise check_violation using message = 'U7'; end if; return coalesce(new, old); end $$;
"""


@pytest.mark.parametrize("place", REFUSALS)
async def test_a_row_that_refuses_is_named_and_stops_no_other(queue: Connection, place: str) -> None:
    deed, named = REFUSALS[place]
    trigger = f"theirs before {deed} on agent.{place.split(maxsplit=1)[0]}"
    await queue.execute("alter sequence agent.event_id_seq restart")
    for word in ("keep", "go", "keep", "go", "keep", "go"):
        await do.enqueue(queue, payload=json.dumps({"for": "U7", "text": word}))
    await queue.execute("select agent.delete_event(id) from generate_series(3, 4) as id")
    stored = "insert into agent.step (event_id, name, nth, sort, attempt, started_at, event_ts)"
    await queue.execute(f"{stored} values (3, 'keep U7', 1, 'step', 1, now(), now())")
    for nth, word in enumerate(("keep", "go")):
        await queue.execute("select agent.set_rule('T1', $1, 'U7', $2, 'U7')", nth, word)
        await queue.execute("select agent.set_cron($1, 'job', '* * * * *', now(), '{}')", f"{word} U7")
    given, step = '{"user": "U7"}', "select * from agent.erase_step($1, $2)"
    if deed == "update":
        await queue.execute("update agent.event set vt = now() + interval '1 hour' where id not in (5, 6)")
        assert len(await do.claim(queue, limit=2)) == 2
    try:
        await queue.execute(REFUSED)
        await queue.execute(f"create trigger {trigger} for each row execute function public.refuse()")
        if deed == "update":
            await queue.execute(step, await begin(queue, given), given)
            await do.advance(queue, timedelta(seconds=11))  # the other one is stopped
        left = (await erase(queue, user="U7"))["left"]
        assert {name.partition(" (")[0]: why for name, why in left.items()} == dict.fromkeys(named, "23514")
        receipt = await do.only_row(queue, "select * from agent.list_erasures()")
        assert receipt["finished_at"] is None
        assert "U7" not in str(receipt)
        assert await traces(queue, "go") == []
    finally:
        await queue.execute("drop function if exists public.refuse() cascade")
    if deed == "update":
        await queue.execute(step, await begin(queue, given), given)
        await do.advance(queue, timedelta(seconds=11))
    assert "left" not in await erase(queue, user="U7")
    assert await traces(queue, "U7") == []
    assert await queue.fetchval("select count(*) from agent.erasure where finished_at is not null") == 1


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ({"team": "T1"}, ["T2 docs:U1", "T2:", "T2:U1"]),
        ({"user": "U1"}, ["T1:", "T2:"]),
        ({"user": "U1", "team": "T1"}, ["T1:", "T2 docs:U1", "T2:", "T2:U1"]),
        ({"channel": "C1", "team": "T1"}, ["T1 docs:U1", "T1:", "T1:U1", "T2 docs:U1", "T2:", "T2:U1"]),
    ],
)
async def test_tokens_go_with_their_owner(queue: Connection, names: Any, left: list[str]) -> None:
    stored = Installations(queue, Keyring([new_key()]))
    for team in ("T1", "T2"):
        await stored.save(installation(team))
        await stored.add_account(Owner.at("docs", team), "U1")
    waits = "insert into agent.install_wait values (7, 'T1', false, 'infinity', 'U1')"
    await queue.execute(waits)
    found = "select array_agg(owner_id || ':' || user_id order by 1) from agent.installation"
    assert (await preview(queue, **names)).get("installation", 0) == 6 - len(left)
    assert (await erase(queue, **names)).get("installation", 0) == 6 - len(left)
    assert sorted(await queue.fetchval(found)) == left
    assert "channel" in names or not await queue.fetchval("select count(*) from agent.install_wait")


async def test_a_workspaces_data_key_goes_with_all_that_it_encrypted(queue: Connection) -> None:
    keys = Keyring([new_key()])

    async def sealed(event_id: str) -> str:
        text, _ = await Sealing(DataKeys(queue, keys), on=True).seal_event(
            envelope(event_id, text=SECRET), None
        )
        return text

    before = await sealed("Ev1")
    await queue.fetchval("select agent.insert_event($1)", before)
    given = json.dumps({"team": "T1"})
    begun = await do.only_row(queue, "select * from agent.begin_erasure($1, 'ann')", given)
    step = await do.only_row(queue, "select * from agent.erase_step($1, $2)", begun["id"], given)
    assert (step["place"], step["waiting"]) == ("key", 1)
    # A process that keeps the key stores an event after all: it is erased, too.
    await queue.fetchval("select agent.insert_event($1)", before.replace("Ev1", "Ev9"))
    await do.advance(queue, UNUSED_AFTER)
    assert (await erase(queue, team="T1"))["data_key"] == 1
    assert await queue.fetchval("select count(*) from agent.job") == 0
    with pytest.raises(KeyDestroyedError):
        await Sealing(DataKeys(queue, keys), on=True).open(before)
    later = await sealed("Ev2")
    await queue.fetchval("select agent.insert_event($1)", later)
    opened = json.loads(await Sealing(DataKeys(queue, keys), on=True).open(later))
    assert opened == json.loads(envelope("Ev2", text=SECRET))
    assert await queue.fetchval("select agent.data_key_lingers()") == UNUSED_AFTER


PLACES: dict[str, Any] = {
    "a field": {"user": "{id}"},
    "a list": {"users": ["U0OTHER00", "{id}"]},
    "a name": {"profiles": {"{id}": {"name": "Ann"}}},
    "a mention": {"text": "hi <@{id}>, all"},
    "a mention with a name": {"text": "hi <@{id}|ann>"},
    "the text": {"text": "ask {id}: she knows"},
    "a new line": {"text": "ask\n{id}\tor me"},
    "a link": {"text": "<https://x.slack.com/team/{id}|Ann>"},
    "a value of a button": {"actions": [{"value": "approve:{id}:7"}]},
    "JSON in JSON": {"view": {"private_metadata": '{"who": "{id}"}'}},
    "beside a longer one": {"user": "{id}AB", "text": "{id}"},
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("encrypted", [True, False])
async def test_a_person_is_found_in_every_place(queue: Connection, place: str, encrypted: bool) -> None:
    sealing = Sealing(DataKeys(queue, Keyring([new_key()])), on=encrypted)
    drawn = Random(place)
    for letters in (ascii_uppercase, ascii_uppercase + digits):
        ids = ["U" + "".join(drawn.choices(letters, k=drawn.choice((8, 10)))) for _ in range(3)]
        stored = {}
        for identity in ids:
            inner = json.loads(json.dumps(PLACES[place]).replace("{id}", identity))
            event, _ = await sealing.seal_event(
                envelope("Ev" + identity.lower(), **{"user": "U0", **inner}), None
            )
            stored[identity] = await queue.fetchval("select agent.insert_event($1)", event)
        kept = await queue.fetch("select event::text from agent.event")
        words = [identity for identity in ids if identity.isalpha() and "mention" not in place]
        assert (
            not encrypted
            or place in {"a field", "beside a longer one"}
            or not [word for word in words if word in str(kept)]
        )
        await erase(queue, user=ids[0])
        assert set(await queue.fetchval("select array_agg(id) from agent.event")) == {
            stored[i] for i in ids[1:]
        }
        await queue.execute("delete from agent.event")


async def test_a_persons_erasure_finds_encrypted_mentions_and_leaves_the_key(queue: Connection) -> None:
    sealing = Sealing(DataKeys(queue, Keyring([new_key()])), on=True)
    for event_id, text in (("Ev1", "<@U0MENTIONED> hello"), ("Ev2", "hello")):
        event, _ = await sealing.seal_event(envelope(event_id, text=text), None)
        await queue.fetchval("select agent.insert_event($1)", event)
    counts = await erase(queue, user="U0MENTIONED", team="T1")
    assert "data_key" not in counts
    assert await queue.fetchval("select array_agg(item_key) from agent.event") == ["Ev2"]
    assert await queue.fetchval("select count(*) from agent.data_key where retired_at is null") == 1

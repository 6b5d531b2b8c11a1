"""What people wrote passes through the codec: with one that turns texts around, no table has a word in the clear.

The codec that changes nothing shows that the same steps do store the word, and in which tables.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from surelane.calls import Connection
from surelane.codec import (
    CURRENT,
    PLAIN,
    RESULT,
    SEALED,
    Codec,
    Location,
    NoKeyError,
    codec_of,
    is_sealed,
    read_keys,
)
from surelane.events import Event
from surelane.jobs import Continuation, Job
from surelane.queue import Queue
from surelane_agents.calls import AgentCalls
from surelane_operator.changes import Changes
from surelane_operator.reads.filters import Filter
from surelane_service.cron import Cron
from surelane_service.engine import Engine, Settled
from surelane_worker.handling.outcomes import Complete, Together, sealed_argument

WORD = "hummingbird"
SAID = {"team": "T1", "channel": "C1", "user": "U1", "ts": "1.1"}
MESSAGE = {"type": "message", "channel": "C1", "user": "U1", "ts": "1.1", "text": WORD}
PAYLOAD = {"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": MESSAGE}
ERROR = {"type": "ValueError", "message": WORD, "traceback": WORD, "at": "2026-01-01T00:00:00+00:00"}
TABLES = {"event", "event_hist", "step", "signal", "cron", "rule", "feedback"}
"""The tables that have what people wrote."""


class Backwards(Codec):
    """Seals a text by turning it around. Ids of Slack's stay beside it, as SQL reads them."""

    on = True

    async def seal_event(
        self, text: str, key: str | None, payload: Mapping[str, Any] | None = None
    ) -> tuple[str, str | None]:
        value = json.loads(text) if payload is None else payload
        beside = {**value, "event": {**value["event"], "text": None}} if "event" in value else {}
        return json.dumps({**beside, SEALED: text[::-1]}), key

    async def seal_payload(
        self,
        value: Any,
        *,
        of: int | None = None,
        like: str | None = None,
        part: bool = False,
    ) -> Any:
        del of, like, part
        beside = {name: value[name] for name in SAID if name in value}
        return {**beside, SEALED: json.dumps(value)[::-1]}

    async def seal(self, text: str, at: Location) -> str:
        del at
        return json.dumps({SEALED: text[::-1]})

    async def tag_key(self, name: str, value: str) -> str:
        return f"{name} {value}"[::-1]

    async def open_events(self, events: Any, *, required: bool = False) -> None:
        del required
        for event in events:
            event.body = await self.open(event.body)

    async def open(self, text: str, at: Location | None = None) -> str:
        del at
        value = json.loads(text)
        if isinstance(value, dict) and is_sealed(value.get("value")):
            return json.dumps({**value, "value": json.loads(value["value"][SEALED][::-1])})
        return str(value[SEALED][::-1]) if is_sealed(value) else text


class Everything:
    """One run of all that stores words, and of all that reads them again."""

    def __init__(self, database: Connection, codec: Codec) -> None:
        self.codec, self.engine = codec, Engine(database, codec)
        self.agents = AgentCalls(self.engine)
        self.queue, self.changes = Queue(database, encryption=codec), Changes(database, codec)

    async def run(self) -> int:
        """Return the id of an event that failed."""
        await self.events()
        identity = await self.steps()
        await self.ends(identity)
        await self.schedules()
        return identity

    async def claim(self, kind: str) -> Event:
        (event,) = await self.engine.claim_events([kind], 1, worker="w")
        await self.codec.open_events([event])
        return event

    async def settled(self, event: Event, outcome: str, argument: object) -> None:
        sealed = await sealed_argument(self.codec, event.id, outcome, json.dumps(argument))
        assert await self.engine.settle([(event.id, event.claim, outcome, sealed)]) == [Settled.DONE]

    async def events(self) -> None:
        await self.queue.insert_event(json.dumps(PAYLOAD))
        assert [each["event"]["text"] for each in await self.agents.live_messages(PAYLOAD)] == [WORD]
        edited = {**PAYLOAD, "event": {**MESSAGE, "text": f"{WORD}s"}, "event_id": "Ev2"}
        await self.agents.replace_message(edited, "Ev2", "step", restart=True, by="U1", reason="edited")
        parent = await self.queue.fan_out(
            [Job("part", {"text": WORD})], Continuation("whole", {"text": WORD})
        )
        await self.settled(await self.claim("part"), "complete", {"said": WORD})
        (child,) = await self.queue.children(parent)
        assert (child.payload, child.result) == ({"text": WORD}, {"said": WORD})

    async def steps(self) -> int:
        identity = await self.queue.enqueue("job", {**SAID, "text": WORD})
        event, engine = await self.claim("job"), self.engine
        assert event.payload["text"] == WORD
        given = event.id, event.claim
        await engine.store_step(*given, "look", 1, WORD, json.dumps(WORD), json.dumps([ERROR]), timedelta())
        await engine.store_step(*given, "fail", 1, WORD, None, json.dumps([ERROR]), timedelta(), final=True)
        await engine.cut_step(*given, "cut", 1, "step", WORD, timedelta(), in_order=True)
        for part in range(2):
            await self.agents.store_said(*given, part, 0, WORD)
        await engine.store_progress(*given, WORD)
        await engine.store_tags(*given, {"bird": WORD})
        await self.queue.signal_id(event.id, "one", WORD)
        await self.queue.signal(str(event.id), "two", WORD)
        await engine.send_signal(event.id, "three", json.dumps(WORD), once=False, by="U1")
        await self.changes.signal(event.id, "four", WORD)
        answer, signal = await engine.take_signal(*given, "one", 1, None)
        assert (answer, json.loads(signal or "{}")["value"]) == ("done", WORD)
        steps = {step.name: step for step in await engine.read_steps(event.id)}
        assert (steps["look"].arguments, steps["look"].result) == (WORD, json.dumps(WORD))
        assert steps["fail"].tried["error"]["message"] == WORD
        assert await engine.step_result(event.id, "look", 1) == json.dumps(WORD)
        await self.agents.rate_turn(event.id, ("T1", "U1", "C1"), -1, WORD, "m", event.id)
        await self.agents.set_rule("T1", (event.id, "U1", WORD, "U1"), {})
        assert [rule[2] for rule in await self.agents.read_rules("T1", ["U1"])] == [WORD]
        return identity

    async def ends(self, identity: int) -> None:
        shown = await self.changes.get(identity, texts=True) or {}
        assert (shown["payload"]["text"], shown["tags"], shown["progress"]) == (WORD, {"bird": WORD}, WORD)
        found = await self.changes.list_events(Filter(tags={"bird": [WORD]}))
        assert [each["id"] for each in found] == [identity]
        event = Event(identity, "job", datetime.now(UTC), 1, 1, datetime.now(UTC), "{}")
        failure = {"error": ERROR, "retry_in": 1, "final": True, "reason": f"A {WORD}", "max_attempts": 1}
        await self.settled(event, "fail", failure)
        ended = await self.changes.get(identity, texts=True) or {}
        assert (ended["errors"][0]["message"], ended["errors"][0]["traceback"]) == (WORD, WORD)
        again = await self.changes.rerun_as_new(identity, payload={**SAID, "text": f"{WORD} again"})
        assert again.id is not None
        event = await self.claim("job")
        await self.engine.run_child(event.id, event.claim, "child", WORD, Job("child", {"text": WORD}))
        then = {
            "children": [{"kind": "part", "payload": {"text": WORD}}],
            "continuation": {"kind": "whole", "payload": {"text": WORD}},
            "result": {"said": WORD},
        }
        await self.settled(event, "fan_out", then)
        await self.queue.enqueue("last", {"text": WORD}, group_key="g")
        event = await self.claim("last")
        result = await sealed_argument(self.codec, event.id, Complete.name, json.dumps({"said": WORD}))
        whole = Together.given(Complete.settled, result, [])
        item = event.id, event.claim, Together.settled, whole
        assert await self.engine.settle([item]) == [Settled.DONE]

    async def schedules(self) -> None:
        await self.engine.set_cron("declared", kind="tick", schedule="0 3 * * *", payload={"text": WORD})
        await self.changes.set_cron("set", Cron("0 3 * * *"), kind="tick", payload={"text": WORD})
        await self.changes.run_cron("set")
        assert {row["payload"]["text"] for row in await self.changes.list_cron()} == {WORD}


async def tables_with(queue: Connection, word: str) -> set[str]:
    """Return the tables in which a word stands, without the parts of a partitioned one."""
    named = await queue.fetch(
        "select relname from pg_class where relnamespace = 'agent'::regnamespace and relkind in ('r', 'p')"
    )
    found = "select exists (select from agent.{} as r where position($1 in r::text) > 0)"
    with_it = {name for (name,) in named if await queue.fetchval(found.format(name), word)}
    return {name.partition("_p2")[0] for name in with_it}


@pytest.mark.parametrize(("codec", "holding"), [(PLAIN, TABLES), (Backwards(), set[str]())])
async def test_every_value_that_is_stored_passes_through_the_codec(
    queue: Connection, codec: Codec, holding: set[str]
) -> None:
    await Everything(queue, codec).run()
    assert await tables_with(queue, WORD) == holding
    assert await tables_with(queue, WORD[::-1]) == TABLES - holding


async def test_what_stores_values_as_they_are_opens_nothing_that_is_sealed() -> None:
    now, sealed = datetime.now(UTC), {SEALED: "AAAA"}
    assert await PLAIN.seal("1", Location(1, RESULT)) == "1"
    assert await PLAIN.seal_error(ERROR, Location(1, RESULT)) == ERROR
    assert await PLAIN.open(f'{{"text": "{SEALED}"}}') == f'{{"text": "{SEALED}"}}'
    before = CURRENT.get()
    for payload in (sealed, {"trigger": "t", "payload": sealed}):
        text = json.dumps(payload)
        event = Event(1, "note", now, 1, 1, now, text)
        await PLAIN.open_events([event])
        with pytest.raises(NoKeyError, match="it is encrypted, and SURELANE_ENCRYPTION_KEYS is not set here"):
            PLAIN.enter([event])
        with pytest.raises(NoKeyError):
            await PLAIN.open(text)
        with pytest.raises(NoKeyError):
            await PLAIN.seal_payload({}, like=text)
        assert "cannot be decrypted" in json.dumps(await PLAIN.show(payload))
    assert PLAIN.enter([Event(1, "note", now, 1, 1, now, "{}")]) is None
    assert CURRENT.get() == before


async def test_keys_without_the_extension_name_it(monkeypatch: pytest.MonkeyPatch, queue: Connection) -> None:
    assert codec_of(read_keys(" "), queue, on=False) is PLAIN
    monkeypatch.setattr("surelane.codec.entry_points", lambda **_: ())
    with pytest.raises(ValueError, match="SURELANE_ENCRYPTION_KEYS is set; install surelane-encryption"):
        read_keys("any")

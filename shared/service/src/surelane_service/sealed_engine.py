"""The worker's client, which decrypts what it reads, and encrypts what people wrote before it is sent. See ADR 0071."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from surelane.calls import Connection, Pool
from surelane.encryption.envelopes import SEALED, DamagedError
from surelane.encryption.places import ERROR, RESULT, Place, signal_place, step_place, tag_place
from surelane.encryption.sealing import Sealing
from surelane.events import Event
from surelane.jobs import Job
from surelane.json_text import json_text
from surelane_service.conversations import ThreadEvent
from surelane_service.engine import Engine, Item, Settled, StoredStep


class OpeningEngine(Engine):
    """The SQL functions with which attempts read steps and signals, decrypted. What it stores is not encrypted."""

    def __init__(self, database: Pool | Connection, sealing: Sealing) -> None:
        super().__init__(database)
        self._sealing = sealing

    async def read_steps(self, identity: int, most: int | None = None) -> list[StoredStep]:
        return [await self._step(identity, step) for step in await super().read_steps(identity, most)]

    async def ended_followers(self, identity: int) -> list[Event]:
        events = await super().ended_followers(identity)
        await self._sealing.open_events(events)
        await self._sealing.require(events)
        return events

    async def child_end(self, end: Mapping[str, Any]) -> Mapping[str, Any]:
        child: int = end["id"]
        errors = await self._sealing.shown_errors([end["error"]] if end["error"] else [], Place(child, ERROR))
        result = await self._sealing.opened(end["result"], Place(child, RESULT))
        return {**end, "result": result, "error": errors[0] if errors else None}

    async def thread_events(self, groups: Sequence[str], *about: str) -> list[ThreadEvent]:
        found = await super().thread_events(groups, *about)
        for each in found:
            each.payload = await self._sealing.opened(each.payload)
            each.result = await self._sealing.opened(each.result, Place(each.id, RESULT))
        return found

    async def live_messages(self, payload: Mapping[str, Any]) -> list[Any]:
        return [await self._sealing.opened(each) for each in await super().live_messages(payload)]

    async def _step(self, identity: int, step: StoredStep) -> StoredStep:
        if not (SEALED in (step.result or "") or SEALED in (step.arguments or "")):
            return step
        waited = step.sort == "wait"
        place = signal_place(identity, step.name) if waited else step_place(identity, step.name, step.nth)
        given = step_place(identity, step.name, step.nth, "arguments")
        arguments = await self._opened(identity, step.arguments, given)
        if arguments != step.arguments:
            arguments = json.loads(arguments or "null")
        if step.result is not None and not step.done and step.sort == "step":
            place = step_place(identity, step.name, step.nth, ERROR)
            place = replace(place, rerun_of=await self.rerun_chain(identity))
            (error,) = await self._sealing.shown_errors([step.tried["error"]], place)
            shown = json.dumps({**step.tried, "error": error})
            return replace(step, result=shown, arguments=arguments)
        return replace(step, result=await self._opened(identity, step.result, place), arguments=arguments)

    async def _opened(self, identity: int, stored: str | None, place: Place) -> str | None:
        """Decrypt what an event has. If it does not open, it may be of the events that this one runs again."""
        if stored is None or SEALED not in stored:
            return stored
        try:
            return await self._sealing.text(stored, place)
        except DamagedError:
            chain = await self.rerun_chain(identity)
            return await self._sealing.text(stored, replace(place, rerun_of=chain))


class SealedEngine(OpeningEngine):
    """The same where encryption is on: steps, signals, answers and outcomes are encrypted before they are stored."""

    async def settle(self, items: Sequence[Item], within: float | None = None) -> list[Settled]:
        sealed = [
            (identity, claim, outcome, argument and await self._argument(identity, outcome, argument))
            for identity, claim, outcome, argument in items
        ]
        return await super().settle(sealed, within)

    async def _argument(self, identity: int, outcome: str, argument: str) -> str:
        place = Place(identity, RESULT)
        if outcome == "complete":
            return await self._sealed(argument, place)
        if outcome not in ("fail", "fan_out", "coalesce"):
            return argument
        given, workspace = json.loads(argument), self._sealing.workspace_of(identity)
        if outcome == "fail":
            place = Place(identity, ERROR)
            if given["error"] is not None:
                (given["error"],) = await self._sealing.errors([given["error"]], workspace, place)
            given["reason"] = self._sealing.reason(given.get("reason"))
        elif outcome == "fan_out":
            for job in (*given["children"], given["continuation"]):
                job["payload"] = await self._sealing.payload(job["payload"], workspace)
            if given["result"] is not None:
                given["result"] = json.loads(await self._sealed(json.dumps(given["result"]), place))
        elif given["argument"] is not None:
            inside = await self._argument(identity, given["outcome"], json.dumps(given["argument"]))
            given["argument"] = json.loads(inside)
        return json.dumps(given)

    async def run_child(
        self,
        identity: int,
        claim: int,
        name: str,
        arguments: str | None,
        child: Job,
        in_order: bool = False,
        if_failed: str = "cancel",
    ) -> tuple[str, str | None]:
        arguments, _ = await self.sealed_step(identity, name, 1, arguments, None)
        payload = await self._sealing.payload(child.payload, self._sealing.workspace_of(identity))
        child = replace(child, payload=payload)
        return await super().run_child(identity, claim, name, arguments, child, in_order, if_failed)

    async def sealed_step(
        self, identity: int, name: str, nth: int, arguments: str | None, result: str | None
    ) -> tuple[str | None, str | None]:
        if result is not None:
            result = await self._sealed(result, step_place(identity, name, nth))
        if arguments is not None:  # a hash of what was given: others could guess that by it
            place = step_place(identity, name, nth, "arguments")
            arguments = await self._sealed(json.dumps(arguments), place)
        return arguments, result

    async def _event_text(self, payload: Mapping[str, Any]) -> str:
        text, _ = await self._sealing.event(json.dumps(payload), None, payload)
        return text

    async def _sealed(self, text: str, place: Place) -> str:
        return await self._sealing.value(text, self._workspace(place), place)

    async def _errors(self, errors: str, place: Place) -> str:
        return json.dumps(await self._sealing.errors(json.loads(errors), self._workspace(place), place))

    async def _tag(self, identity: int, name: str, value: str) -> dict[str, Any]:
        sealed = await self._sealed(json.dumps(value), tag_place(identity, name))
        return {"found_by": await self._sealing.tag_key(name, value), "value": json.loads(sealed)}

    def _workspace(self, place: Place) -> str:
        return "" if place.event is None else self._sealing.workspace_of(place.event)

    async def send_signal(
        self, identity: int, name: str, value: str, *, once: bool, by: str
    ) -> tuple[str, str | None]:
        sealed = await self._sealing.value(value, None, signal_place(identity, name))
        return await super().send_signal(identity, name, sealed, once=once, by=by)

    async def _cron_payload(self, payload: Mapping[str, Any]) -> str:
        await super()._cron_payload(payload)  # checks it
        return json_text(await self._sealing.payload(payload, ""))

"""The worker's client, which encrypts what people wrote before it is sent, and decrypts what it reads. See ADR 0071."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from surelane.calls import Connection, Pool
from surelane.encryption.envelopes import SEALED
from surelane.encryption.sealing import Sealing
from surelane.events import Event
from surelane.json_text import json_text
from surelane_service.engine import Engine, Item, Settled, StoredStep

EMPTY = "null"
"""The answer to a request that says nothing."""


class SealedEngine(Engine):
    """The SQL functions with which attempts store steps, signals, answers and outcomes, encrypted if it is on."""

    def __init__(self, database: Pool | Connection, sealing: Sealing) -> None:
        """Use a connection or a pool."""
        super().__init__(database)
        self._sealing = sealing

    async def settle(self, items: Sequence[Item]) -> list[Settled]:
        """Report outcomes, as :meth:`Engine.settle` does."""
        if self._sealing.on:
            items = [
                (identity, claim, outcome, argument and await self._argument(identity, outcome, argument))
                for identity, claim, outcome, argument in items
            ]
        return await super().settle(items)

    async def _argument(self, identity: int, outcome: str, argument: str) -> str:
        workspace = self._sealing.workspace_of(identity)
        if outcome == "complete":
            return await self._sealing.value(argument, workspace)
        if outcome not in ("fail", "fan_out", "coalesce"):
            return argument
        given = json.loads(argument)
        if outcome == "fail":
            (given["error"],) = await self._sealing.errors([given["error"]], workspace)
            given["reason"] = self._sealing.reason(given.get("reason"))
        elif outcome == "fan_out":
            for job in (*given["children"], given["continuation"]):
                job["payload"] = await self._sealing.payload(job["payload"], workspace)
            if given["result"] is not None:
                given["result"] = json.loads(
                    await self._sealing.value(json.dumps(given["result"]), workspace)
                )
        elif given["argument"] is not None:
            inside = await self._argument(identity, given["outcome"], json.dumps(given["argument"]))
            given["argument"] = json.loads(inside)
        return json.dumps(given)

    async def answer_requests(self, items: Sequence[tuple[int, int, str]]) -> set[int]:
        """Answer the requests that wait for events, as :meth:`Engine.answer_requests` does."""
        if self._sealing.on:
            items = [
                (identity, claim, text if text == EMPTY else await self._value(identity, text))
                for identity, claim, text in items
            ]
        return await super().answer_requests(items)

    async def store_step(
        self,
        identity: int,
        claim: int,
        name: str,
        nth: int,
        arguments: str | None,
        result: str | None,
        errors: str,
        took: timedelta,
    ) -> Settled:
        """Store a step of a claimed event, as :meth:`Engine.store_step` does."""
        if self._sealing.on:
            workspace = self._sealing.workspace_of(identity)
            if result is not None:
                result = await self._sealing.value(result, workspace)
            errors = json.dumps(await self._sealing.errors(json.loads(errors), workspace))
            if arguments is not None:  # a hash of what was given: others could guess that by it
                arguments = await self._sealing.value(json.dumps(arguments), workspace)
        return await super().store_step(identity, claim, name, nth, arguments, result, errors, took)

    async def read_steps(self, identity: int) -> list[StoredStep]:
        """Return the steps that earlier attempts of an event stored."""
        return [await self._step(step) for step in await super().read_steps(identity)]

    async def ended_followers(self, identity: int) -> list[Event]:
        """Return the events that ended with an earlier run of this one, as it was suspended."""
        events = await super().ended_followers(identity)
        await self._sealing.open_events(events)
        await self._sealing.require(events)
        return events

    async def take_signal(
        self, identity: int, claim: int, name: str, nth: int, seconds: float | None
    ) -> tuple[str, str | None]:
        """Take a signal for a wait of a claimed event, as :meth:`Engine.take_signal` does."""
        answer, signal = await super().take_signal(identity, claim, name, nth, seconds)
        return answer, None if signal is None else await self._sealing.text(signal)

    async def send_signal(
        self, identity: int, name: str, value: str, *, once: bool, by: str
    ) -> tuple[str, str | None]:
        """Send a value, JSON text, to an event by its id, as :meth:`Engine.send_signal` does."""
        sealed = await self._sealing.value(value) if self._sealing.on else value
        answer, decided = await super().send_signal(identity, name, sealed, once=once, by=by)
        return answer, None if decided is None else await self._sealing.text(decided)

    async def _cron_payload(self, payload: Mapping[str, Any]) -> str:
        """Return a schedule's payload as it is stored, JSON text."""
        text = await super()._cron_payload(payload)
        return json_text(await self._sealing.payload(payload, "")) if self._sealing.on else text

    async def _step(self, step: StoredStep) -> StoredStep:
        result, arguments = step.result, step.arguments
        if result is not None:
            result = await self._sealing.text(result)
        if arguments is not None and SEALED in arguments:
            arguments = json.loads(await self._sealing.text(arguments))
        return replace(step, result=result, arguments=arguments)

    async def _value(self, identity: int, text: str) -> str:
        return await self._sealing.value(text, self._sealing.workspace_of(identity))

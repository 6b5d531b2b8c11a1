"""The queue's client that encrypts payloads and signals. See ADR 0071."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from surelane.jobs import Child, Job
from surelane.queue import LimitKeyOf, OnStored, Queue
from surelane_service.sealing import Sealing

if TYPE_CHECKING:
    from surelane.drivers import AsyncDatabase


class SealedQueue(Queue):
    """A :class:`surelane.Queue` that encrypts payloads and signals if it is on, and decrypts what it reads."""

    def __init__(
        self,
        database: "AsyncDatabase",
        sealing: Sealing,
        on_stored: OnStored | None = None,
        limit_key_of: LimitKeyOf | None = None,
    ) -> None:
        """Use a connection or a pool. The other arguments are those of :class:`surelane.Queue`."""
        super().__init__(database, on_stored, limit_key_of)
        self._sealing = sealing

    async def _ready(self, jobs: Sequence[Job]) -> Sequence[Job]:
        ready = await super()._ready(jobs)
        if not self._sealing.on:
            return ready
        return [replace(job, payload=await self._sealing.payload(job.payload)) for job in ready]

    async def _text(self, value: Any) -> str:  # noqa: ANN401 - any JSON value
        text = await super()._text(value)
        return await self._sealing.value(text) if self._sealing.on else text

    async def children(self, continuation: int) -> list[Child]:
        """Return the children of a continuation, in the order in which they were started."""
        opened = self._sealing.opened
        return [
            replace(child, payload=await opened(child.payload), result=await opened(child.result))
            for child in await super().children(continuation)
        ]

"""The queue as a worker's handlers and duties have it: what they store through it is counted."""

from collections.abc import Callable, Sequence

from surelane.events import Inserted, Settled
from surelane.jobs import Continuation, FanOutText, Job, OnDuplicate
from surelane.pool import Connection, Pool
from surelane.queue import Queue

Sent = Callable[[Sequence[str]], None]
"""Counts the kinds of jobs that were stored, one each."""


class CountedQueue(Queue):
    """Tells ``sent`` of each job that was stored; a duplicate is none."""

    def __init__(self, database: Pool | Connection, sent: Sent) -> None:
        super().__init__(database)
        self._sent = sent

    async def enqueue_many(
        self, jobs: Sequence[Job], *, on_duplicate: OnDuplicate = "skip"
    ) -> list[Inserted]:
        """As :meth:`Queue.enqueue_many`, which :meth:`Queue.enqueue` calls, too."""
        answers = await super().enqueue_many(jobs, on_duplicate=on_duplicate)
        self._sent([job.kind for job, stored in zip(jobs, answers, strict=True) if not stored.duplicate])
        return answers

    async def fan_out(self, children: Sequence[Job], continuation: Continuation) -> int:
        """As :meth:`Queue.fan_out`."""
        identity = await super().fan_out(children, continuation)
        self._sent([job.kind for job in (*children, continuation)])
        return identity

    async def continue_event_as(
        self, identity: int, claim: int, jobs: FanOutText, result: str | None = None
    ) -> Settled:
        """As :meth:`Queue.continue_event_as`; a claim that does not stand starts nothing."""
        answer = await super().continue_event_as(identity, claim, jobs, result)
        if answer is Settled.DONE:
            self._sent(jobs.kinds)
        return answer

"""Run the ingest service without a database: it verifies, reads and answers, and does not store."""

import sys

from surelane.events import Inserted
from surelane_ingest import wiring
from surelane_ingest.writer import Answer, Writer
from surelane_service.lifecycle import run


class Forgetful(Writer):
    """A writer that reports every event as stored."""

    async def store(self, body: str, key: str | None, traceparent: str | None = None) -> Answer:  # noqa: ARG002 - that is the point
        return Inserted(0)


if __name__ == "__main__":
    wiring.Writer = Forgetful  # type: ignore[attr-defined]
    sys.exit(run(wiring.main))

"""Run the ingest service without a database: it verifies, reads and answers, and does not store."""

import sys

from surelane.events import Inserted
from surelane_ingest import wiring
from surelane_ingest.answers import Request
from surelane_ingest.writer import Answer, Writer
from surelane_service.lifecycle import run


class Forgetful(Writer):
    """A writer that reports every event as stored."""

    async def store(
        self,
        body: str,  # noqa: ARG002 - that is the point
        key: str | None,  # noqa: ARG002
        traceparent: str | None = None,  # noqa: ARG002
        request: Request | None = None,  # noqa: ARG002
    ) -> Answer:
        return Inserted(0)


if __name__ == "__main__":
    wiring.Writer = Forgetful  # type: ignore[attr-defined]
    sys.exit(run(wiring.main))

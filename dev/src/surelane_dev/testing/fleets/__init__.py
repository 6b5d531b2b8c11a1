"""Whole fleets in virtual time: the real ingest, workers and SQL, with a clock that jumps to what happens next."""

from surelane_dev.testing.fleets.face import (
    FleetWorker,
    StoredEvent,
    VirtualFleet,
    fleet,
    virtual,
    virtual_databases,
)

__all__ = ["FleetWorker", "StoredEvent", "VirtualFleet", "fleet", "virtual", "virtual_databases"]

"""A schedule that a team declares beside its handlers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from surelane_service.cron import CatchUp, Cron


@dataclass(frozen=True, slots=True)
class Schedule:
    """A named schedule, created or changed when a worker starts; :meth:`Handlers.cron` says what each field means.

    Raises:
        ValueError: the fields or the time zone cannot be read.
    """

    name: str
    schedule: str
    kind: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    time_zone: str = "UTC"
    catch_up: CatchUp = "one"

    def __post_init__(self) -> None:
        Cron(self.schedule, self.time_zone)

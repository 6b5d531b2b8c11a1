"""The watch over the queue's figures shows a bounded number of names and warns rarely."""

from datetime import timedelta

import pytest
import structlog

from surelane_service import watch as watching
from surelane_service.figures import Figures, Holder, KindFigures, Measured, bounded
from surelane_service.probes import BoundedNames
from surelane_service.watch import WARNED_AFTER, Watch


class Told(Measured):
    """Figures that a test invents."""

    def __init__(self, figures: Figures) -> None:
        self.told = figures

    async def figures(self) -> Figures:
        return self.told


def kind(name: str, pending: int = 0, age: float = 0.0) -> KindFigures:
    return KindFigures(name, paused=False, pending=pending, scheduled=0, running=0, oldest_pending_age=age)


def held(pid: int = 7, age: float = WARNED_AFTER, *, fresh: bool = True) -> Figures:
    holder = Holder("session", pid, "a report", "idle in transaction", since=1000.0 + pid, age=age)
    return Figures([], 0, 0, 0, holder, 0.0, fresh, timedelta(0))


def test_the_largest_kinds_keep_their_names_and_the_others_share_one() -> None:
    kinds = [kind(f"k{number}", number, age=float(number)) for number in range(10)]
    shown = bounded(kinds, most=3)
    expected = [("k9", 9, 9.0), ("k8", 8, 8.0), ("other", 28, 7.0)]
    assert [(each.kind, each.pending, each.oldest_pending_age) for each in shown] == expected
    assert bounded(kinds[:3], most=3) == kinds[:3]
    summed = bounded([*kinds, kind("other", 100, age=1.0)], most=3)
    assert [(each.kind, each.pending) for each in summed] == [("k9", 9), ("k8", 8), ("other", 128)]
    names = BoundedNames(2)
    assert [names(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", "other", "a", "other"]


async def warnings(watch: Watch) -> list[object]:
    with structlog.testing.capture_logs() as logs:
        await watch.read()
    return [line["pid"] for line in logs if line["event"] == "vacuum is held back"]


async def test_what_holds_back_vacuum_is_named_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(held())
    watch = Watch(told.figures)
    with structlog.testing.capture_logs() as logs:
        await watch.read()
    (line,) = logs
    told_of = (line["log_level"], line["pid"], line["application"], line["holder"])
    assert told_of == ("warning", 7, "a report", "session")
    assert await warnings(watch) == []
    told.told = held(pid=8)
    assert await warnings(watch) == [8]
    monkeypatch.setattr(watching, "WARNED_EVERY", 0.0)
    assert await warnings(watch) == [8], "its time has passed"
    for untold in (
        held(age=WARNED_AFTER - 1),
        held(fresh=False),
    ):  # it is short, or another replica tells of it
        assert await warnings(Watch(Told(untold).figures)) == []

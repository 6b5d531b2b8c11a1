"""Suspended events and their signals, stored steps, children, and cursors (005, 010, 011; ADR 0003, 0046, 0050)."""

from collections.abc import Iterator
from typing import NamedTuple

from tests.specification.checker import Specification


class Run(NamedTuple):
    """A durable handler that waits for a signal."""

    at: str = "waiting"
    """waiting, running, suspending, suspended, ended."""
    sent: bool = False
    read: str = ""
    """What a suspension has read, where it locks nothing: ``signal`` or ``none``."""
    sending: str = ""
    """What a signal has read, where it locks nothing: ``suspended`` or ``awake``."""


class Suspension(Specification):
    """``settle_suspended`` and ``send_signal`` lock the event's row."""

    unfair = "send_signal"

    def start(self) -> Run:
        return Run()

    def steps(self, s: Run) -> Iterator[tuple[str, Run]]:
        unlocked = "signals_unlocked" in self.old
        if s.at == "waiting":
            yield "claim_events", s._replace(at="running")
        elif s.at == "running":
            yield "take_signal", s._replace(at="ended" if s.sent else "suspending")
        elif s.at == "suspending" and unlocked and not s.read:
            yield "settle_suspended", s._replace(read="signal" if s.sent else "none")
        elif s.at == "suspending":
            wakes = s.read == "signal" if unlocked else s.sent
            yield "settle commits", s._replace(at="waiting" if wakes else "suspended", read="")
        if not s.sent and unlocked and not s.sending:
            yield "send_signal", s._replace(sending="suspended" if s.at == "suspended" else "awake")
        elif not s.sent:
            asleep = s.sending == "suspended" if unlocked else s.at == "suspended"
            name = "signal commits" if unlocked else "send_signal"
            yield name, s._replace(sent=True, sending="", at="waiting" if asleep else s.at)

    def good(self, s: Run) -> bool:
        return s.at in ("suspended", "ended") if not s.sent else s.at == "ended"


class Attempts(NamedTuple):
    """Attempts of one event, each by its claim, and the value of their step."""

    claim: int = 1
    values: tuple[int, ...] = (0, 0)
    """The value with which the attempt of each claim goes on; 0: it has none yet, -1: it was told ``stale``."""
    called: tuple[bool, ...] = (False, False)
    stored: int = 0


class Steps(Specification):
    """``store_step``: a worker freezes after it called a step's function, and another one gets the event."""

    unfair = "lapse"

    def start(self) -> Attempts:
        return Attempts()

    def steps(self, s: Attempts) -> Iterator[tuple[str, Attempts]]:
        if s.claim == 1:
            yield "lapse", s._replace(claim=2)
        for claim in range(1, s.claim + 1):
            value, called = s.values[claim - 1], s.called[claim - 1]
            if not value and not called:
                to = s._replace(called=tuple(c or n == claim for n, c in enumerate(s.called, 1)))
                yield f"stored_steps {claim}", self.goes_on(s, claim, s.stored) if s.stored else to
            elif not value:
                stands = claim == s.claim or "unfenced_steps" in self.old
                to = s._replace(stored=s.stored or claim) if stands else s
                yield f"store_step {claim}", self.goes_on(to, claim, claim if stands else -1)

    def goes_on(self, s: Attempts, claim: int, value: int) -> Attempts:
        return s._replace(values=tuple(value if n == claim else old for n, old in enumerate(s.values, 1)))

    def broken(self, s: Attempts) -> str:
        value = s.values[s.claim - 1]
        return (
            f"a run goes on with {value}, and {s.stored} is stored" if value > 0 and value != s.stored else ""
        )

    def good(self, s: Attempts) -> bool:
        return s.values[s.claim - 1] != 0


class Children(Specification):
    """The last of two children makes the continuation visible: ``children_ended`` counts. State: each child, and it."""

    def start(self) -> tuple[str, str, bool]:
        return "live", "live", False

    def steps(self, s: tuple[str, str, bool]) -> Iterator[tuple[str, tuple[str, str, bool]]]:
        for i in (0, 1):
            mine, other = s[i], s[1 - i]
            to = "ended" if "siblings_looked_for" not in self.old or mine != "live" else f"sees {other}"
            if mine == "ended":
                continue
            last = other == "ended" if mine == "live" else mine == "sees ended"
            name = f"settle {i}" if to != "ended" else f"settle {i} commits"
            yield name, (*[to if n == i else s[n] for n in (0, 1)], s[2] or (to == "ended" and last))  # type: ignore[misc]

    def good(self, s: tuple[str, str, bool]) -> bool:
        return s[2]


class Lane(NamedTuple):
    """A lane in which new events never end, and one event committed late, behind the cursor."""

    late: str = "absent"
    ahead: bool = False
    """The cursor is ahead of the late event."""
    sent: str = ""
    """The claim under way began at the cursor (``ahead``) or at the start (``behind``)."""
    corrected: bool = False
    """A peek answered while that claim was under way."""


class Cursor(Specification):
    """A worker's claims and peeks (ADR 0003)."""

    unfair = "commit"

    def start(self) -> Lane:
        return Lane()

    def steps(self, s: Lane) -> Iterator[tuple[str, Lane]]:
        if s.late == "absent":
            yield "commit", s._replace(late="waiting")
        if not s.sent:
            yield "claim_events", s._replace(sent="ahead" if s.ahead else "behind", corrected=False)
        else:
            late = "claimed" if s.late == "waiting" and s.sent == "behind" else s.late
            moves = not s.corrected or "claims_undo_peeks" in self.old
            yield (
                "claimed",
                s._replace(
                    sent="", late=late, ahead=(late != "waiting" or s.sent == "ahead") if moves else s.ahead
                ),
            )
        if s.late == "waiting" and s.ahead and "no_peeks" not in self.old:
            yield "peek_lanes", s._replace(ahead=False, corrected=bool(s.sent))

    def good(self, s: Lane) -> bool:
        return s.late != "waiting"

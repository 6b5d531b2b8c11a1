"""See the statements that hosts send, and hold them up."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from surelane_dev.testing.fleets.wire import Wire


async def _nothing(*_: object) -> None: ...


@contextmanager
def statements(
    before: Callable[[Wire, str], Awaitable[None]] = _nothing,
    after: Callable[[Wire, str, Any], Awaitable[None]] = _nothing,
) -> Iterator[list[tuple[str, str]]]:
    """Note each host's statements. ``before`` is awaited before one is sent, ``after`` before its answer is given."""
    sent: list[tuple[str, str]] = []
    real: Any = Wire._answered  # noqa: SLF001 - no other place sees them all

    async def answered(wire: Wire, method: str, query: str, *given: Any) -> Any:
        sent.append((wire.host.name, query))
        await before(wire, query)
        answer = await real(wire, method, query, *given)
        await after(wire, query, answer)
        return answer

    with patch.object(Wire, "_answered", answered):
        yield sent

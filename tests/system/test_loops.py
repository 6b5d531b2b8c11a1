"""Bots that answer each other in a thread are stopped; people there are heard, and other threads are."""

import time
from typing import Any

from surelane.calls import Connection
from tests.system.ingest_client import APP, envelope, served


def message(nth: int, thread: str | None = "1.1", **author: Any) -> dict[str, Any]:
    """Return the envelope of a message, by the app itself unless another author is given."""
    ts = f"{int(time.time())}.{nth:06}"
    said = {"type": "message", "channel_type": "channel", "channel": "C1", "text": f"{nth}", "ts": ts}
    by = author or {"user": "UBOT", "bot_id": "B1", "app_id": APP}
    return envelope({**said, "event_ts": ts, "thread_ts": thread, **by}, f"Ev{nth}")


async def test_a_thread_without_people_is_taken_so_often_and_then_dropped(
    database: str, connection: Connection
) -> None:
    types = frozenset({"message.channels", "message.im"})
    async with served(database, event_types=types, own_events=True, loop_limit=3) as ingest:

        async def stored(*payloads: dict[str, Any]) -> list[str]:
            for payload in payloads:
                assert (await ingest.slack.event(payload)).status == 200
            rows = await connection.fetch(
                "delete from agent.event returning event #>> '{event,text}' as text"
            )
            return sorted(row["text"] for row in rows)

        first = message(0)
        assert await stored(first, first, message(1), message(2), message(3), message(4)) == ["0", "1", "2"]
        assert ingest.ingest.writer.metrics.ignored["loop"] == 2
        assert await stored(message(5, thread="1.2")) == ["5"], "another thread"
        person, alone = message(6, user="U1"), {"user": "UBOT"}
        said = [person, *(message(nth, **alone) for nth in range(7, 11))]
        assert await stored(*said) == ["6", "7", "8", "9"], "as often again, also without a bot_id"
        to_itself = [
            message(nth, None, channel="D1", channel_type="im", bot_id="B1", app_id=APP)
            for nth in range(20, 25)
        ]
        assert await stored(*to_itself) == ["20", "21", "22"], "direct messages are one thread"

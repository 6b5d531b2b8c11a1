"""A gateway of your own: what people say reaches the agent's queue in the transaction that stores it in your table.

Either both are there after a crash or neither is, and a message that your channel delivers twice is one turn.
"""

from dataclasses import dataclass

import asyncpg

from surelane import Queue

TABLE = """
create table if not exists message
( session_id text, message_id text, said text not null, at timestamptz not null default now()
, primary key (session_id, message_id))
"""


@dataclass(frozen=True)
class Message:
    """Something a person said; ``channel`` and ``thread_ts`` where they said it in Slack."""

    session_id: str
    message_id: str
    user: str
    text: str
    channel: str | None = None
    thread_ts: str | None = None


async def receive(connection: "asyncpg.Connection[asyncpg.Record]", message: Message) -> int:
    """Store a message and its turn; return the turn's id in the queue, the first one's for a repeated message."""
    key = f"{message.session_id}:{message.message_id}"
    async with connection.transaction():
        await connection.execute(
            "insert into message values ($1, $2, $3) on conflict do nothing",
            message.session_id,
            message.message_id,
            message.text,
        )
        return await Queue(connection).enqueue(
            "agent-turn",
            {
                "session": message.session_id,
                "user": message.user,
                "text": message.text,
                "channel": message.channel,
                "thread_ts": message.thread_ts,
            },
            dedupe_key=f"turn:{key}",  # while the first is pending, a second is not added
            group_key=f"session:{message.session_id}",  # turns of a session come one after another, in order
            enqueued_by="gateway",
        )

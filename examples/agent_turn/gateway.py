"""Receive messages in a gateway of your own: store a message and enqueue its turn in one transaction.

After a crash either both are there or neither. A message that your channel delivers twice makes one turn.
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
    """A person's message. ``channel`` and ``thread_ts`` are its place in Slack, if it came from there."""

    session_id: str
    message_id: str
    user: str
    text: str
    channel: str | None = None
    thread_ts: str | None = None


async def receive(connection: "asyncpg.Connection[asyncpg.Record]", message: Message) -> int:
    """Store a message and its turn. Return the turn's id in the queue; a repeated message has the id of the first."""
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
            dedupe_key=f"turn:{key}",  # while the first turn is pending, no second one is stored
            group_key=f"session:{message.session_id}",  # turns of a session run one after another, in order
            enqueued_by="gateway",
        )

"""Run a bot for the browser tests. A word in the message decides its answer."""

import asyncio
from typing import Any

from slack_sdk.http_retry.builtin_async_handlers import AsyncRateLimitErrorRetryHandler
from slack_sdk.web.async_client import AsyncWebClient

from tests.system.slack_app import TOKEN, Pair


async def answering(pair: Pair) -> None:
    """Answer each event once, as it arrives, until cancelled."""
    retrying = [AsyncRateLimitErrorRetryHandler(3)]
    client = AsyncWebClient(token=TOKEN, base_url=f"{pair.url}/api/", retry_handlers=[*retrying])
    answered: set[str] = set()
    while True:
        for envelope in pair.app.acknowledged:
            is_message = "text" in envelope["event"] and "bot_id" not in envelope["event"]
            if envelope["event_id"] not in answered and is_message:
                answered.add(envelope["event_id"])
                await _answer(client, envelope["event"])
        await asyncio.sleep(0.02)


async def _answer(client: AsyncWebClient, event: dict[str, Any]) -> None:
    thread_ts, text = event.get("thread_ts") or event["ts"], event["text"]
    if "quiet" in text:
        return
    where = {"channel": event["channel"], "thread_ts": thread_ts}
    if "status" in text:
        await client.assistant_threads_setStatus(
            channel_id=event["channel"], thread_ts=thread_ts, status="is thinking"
        )
    elif "stream" in text:
        await _stream(client, event, thread_ts)
    else:
        await client.reactions_add(channel=event["channel"], timestamp=event["ts"], name="eyes")
        await client.chat_postMessage(text=f"you said: {text.partition('> ')[2] or text}", **where)


async def _stream(client: AsyncWebClient, event: dict[str, Any], thread_ts: str) -> None:
    where = {"channel": event["channel"], "thread_ts": thread_ts}
    person = {"recipient_team_id": event["team"], "recipient_user_id": event["user"]}
    stream = await client.chat_stream(**where, **person, buffer_size=1)
    for part in ("it ", "comes ", "in **pieces**"):
        await stream.append(markdown_text=part)
    await stream.stop()

"""Run a remote agent: take signed tasks, answer 202 at once, and post the signed answer later.

AGENT_SECRET=whsec_… python -m examples.dispatch.agent counter
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import web

from surelane_service.webhooks import answer_id, read_secrets, sign, task_id, verified

SKILLS: dict[str, Callable[[str], Any]] = {"counter": lambda text: len(text.split()), "shouter": str.upper}
PATIENCE = 600
"""Seconds for which it tries to deliver an answer."""


class Agent:
    """An agent with one skill. ``key`` signs its answers and verifies its tasks."""

    def __init__(self, name: str, key: bytes) -> None:
        self._name = name
        self._key = key
        self._known: set[str] = set()
        self._working: set[asyncio.Task[None]] = set()

    def app(self) -> web.Application:
        """Return the application that takes tasks at ``/tasks``."""
        app = web.Application()
        app.router.add_post("/tasks", self.take)
        return app

    async def take(self, request: web.Request) -> web.Response:
        """Take a task. If it is sent again, with the same ``webhook-id``, do it once."""
        body = await request.read()
        webhook_id = verified(request.headers, body, [self._key])
        given = json.loads(body) if webhook_id else {}
        # Our own answers have the same key. If one is posted back to us, refuse it: only tasks have this id.
        if webhook_id is None or webhook_id != task_id(given["id"]):
            return web.Response(status=401)
        if webhook_id not in self._known:
            self._known.add(webhook_id)
            task = asyncio.create_task(self.work(given))
            self._working.add(task)
            task.add_done_callback(self._working.discard)
        return web.Response(status=202)

    async def work(self, given: dict[str, Any]) -> None:
        """Do a task and send the answer. Send it again after 409 and 503, for a bounded time.

        The signed id names the task, so the answer is good for no other task.
        """
        answer = json.dumps(SKILLS[self._name](given["task"])).encode()
        async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
            while True:
                signed = sign(answer_id(given["id"]), answer, [self._key])
                headers = {"Content-Type": "application/json", **signed}
                async with session.post(given["answer_url"], data=answer, headers=headers) as response:
                    if response.status not in (409, 503):
                        return
                    pause = float(response.headers.get("Retry-After", 1))
                await asyncio.sleep(pause)


def main() -> None:
    """Serve the agent that the command line names, on port 8100."""
    name, secrets = sys.argv[1], read_secrets(f"agent={os.environ['AGENT_SECRET']}")
    web.run_app(Agent(name, secrets["agent"][0]).app(), port=8100)


if __name__ == "__main__":
    main()

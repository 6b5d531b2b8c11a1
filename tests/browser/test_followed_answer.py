"""A browser follows an agent's answer with the script of docs/agent.md, over a web server that passes the stream on."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web

from extensions.agents.tests.system.model_server import OURS, ModelServer, says, settings
from extensions.agents.tests.system.shared import shared_model
from surelane.calls import Connection
from surelane.queue import Queue
from surelane_service.probes import serving
from tests.browser.slack_page import Browser
from tests.databases import as_role
from tests.docs.blocks import blocks
from tests.system.operators import page as operator_page
from tests.system.worker import worker

pytestmark = pytest.mark.browser
model = shared_model
TOKEN = "an-operators-token-0123456789"


def web_server(operator: str) -> web.Application:
    """Return a team's web server: its page, and the stream, passed on with a token."""
    (script,) = blocks("js", page="docs/agent.md")

    async def show(request: web.Request) -> web.Response:
        turn = request.match_info["id"]
        names = f"const turn = {turn}, page = document.body, done = (end) => {{ window.end = end; }};"
        html = f"<body></body><script>{names}\n{script.code}</script>"
        return web.Response(text=html, content_type="text/html")

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if "Last-Event-ID" in request.headers:
            headers["Last-Event-ID"] = request.headers["Last-Event-ID"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        url = f"{operator}/v1/jobs/{request.match_info['id']}/stream"
        async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as stream:
            await response.prepare(request)
            async for line in stream.content:
                await response.write(line)
                if b'"begins": true' in line and "Last-Event-ID" not in request.headers:
                    await response.write(await stream.content.readline())
                    break  # the connection breaks, and the browser comes again
        return response

    app = web.Application()
    app.add_routes([web.get("/{id:[0-9]+}", show), web.get("/answers/{id}", answer)])
    return app


async def test_the_documented_script_shows_each_character_once_over_two_connections(
    browser: Browser, database: str, connection: Connection, model: ModelServer
) -> None:
    pause = asyncio.Event()
    model.plans["page"] = [says("Blue, ", "of course.", pause=pause)]
    turn = await Queue(connection).enqueue("agent-turn", {"text": "plan:page", "stream": True})
    async with (
        operator_page(as_role(database, "surelane_operator"), SURELANE_API_TOKEN=TOKEN) as operator,
        serving(web_server(operator), 0, setting="none", host="127.0.0.1") as port,
        worker(database, **settings(model, **OURS)),
    ):
        shown = await browser.new_page()
        await shown.goto(f"http://127.0.0.1:{port}/{turn}")
        await shown.wait_for_function("document.body.textContent === 'Blue, '", timeout=60_000)
        pause.set()
        await shown.wait_for_function("window.end", timeout=60_000)
        assert await shown.evaluate("document.body.textContent") == "Blue, of course."
        assert json.loads(await shown.evaluate("JSON.stringify(window.end)"))["status"] == "completed"
        await shown.close()

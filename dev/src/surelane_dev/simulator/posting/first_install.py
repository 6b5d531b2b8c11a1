"""Install the app in the demo workspace by OAuth, as a person does: so its first message is answered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import SplitResult, parse_qs, urlsplit

import aiohttp

from surelane_dev.simulator.installs import AuthorizeRequest
from surelane_dev.simulator.simulator import Simulator
from surelane_service.logs import get_logger

PAUSE = 0.5
"""Seconds before the next try, because ingest may start later."""
_log = get_logger("simulator")


@asynccontextmanager
async def installing_first(simulator: Simulator) -> AsyncIterator[None]:
    """Install it meanwhile, if the app has a client id. A workspace that has ever had the app is left alone."""
    had = any(grant.workspace is simulator.workspace for grant in simulator.installs.grants.values())
    if had or not (simulator.settings.installs and simulator.settings.posting):
        yield
        return
    simulator.waits_for = "the demo workspace installs the app"
    task = asyncio.create_task(_until_installed(simulator))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _until_installed(simulator: Simulator) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        while (problem := await _install(simulator, session)) is not None:
            if problem != simulator.waits_for:
                _log.info("the demo workspace cannot install the app yet", reason=problem)
            simulator.waits_for = problem
            await asyncio.sleep(PAUSE)
    simulator.waits_for = None
    _log.info("the demo workspace has installed the app")


async def _install(simulator: Simulator, session: aiohttp.ClientSession) -> str | None:
    """Begin an install at ingest, approve it, and go back with the code. Return why there is no install."""
    ingest, workspace = f"{simulator.settings.ingest_url}/slack", simulator.workspace
    try:
        async with session.get(f"{ingest}/install", allow_redirects=False) as began:
            query = {name: values[0] for name, values in parse_qs(_target(began).query).items()}
            cookies = {name: morsel.value for name, morsel in began.cookies.items()}
        if "state" not in query:
            return f"ingest answered {began.status} at /slack/install"
        asked = AuthorizeRequest(*(query.get(name, "") for name in ("redirect_uri", "scope", "user_scope")))
        back = {"code": simulator.installs.approve(asked, workspace, wide=False), "state": query["state"]}
        # The cookie is for HTTPS alone, which a client's jar obeys.
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
        async with session.get(f"{ingest}/oauth_redirect", params=back, headers=headers) as ended:
            return None if ended.ok else f"ingest answered {ended.status} at /slack/oauth_redirect"
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return f"ingest does not answer: {type(error).__name__}"


def _target(response: aiohttp.ClientResponse) -> SplitResult:
    return urlsplit(response.headers.get("Location", ""))

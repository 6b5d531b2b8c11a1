"""Serve the operator's page on a test's database, and use it as a person on call does."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from aiohttp import web

from surelane.calls import Pool
from surelane_operator.api.api import OperatorApi
from surelane_operator.changes import Changes
from surelane_operator.console.access.guard import RequestGuard
from surelane_operator.console.console import SPELL, Console
from surelane_operator.console.live import Live
from surelane_operator.console.screen import Sources
from surelane_operator.doctor import Examinations
from surelane_operator.doctor.finding import Finding, Level
from surelane_operator.roles import Role, Viewer
from surelane_service.probes import private_app, serving
from tests.browser.slack_page import PATIENCE, Browser, Page

CSRF = "a-stand-in-for-the-token"
FINDINGS = [Finding("clock", Level.WARNING, "this machine's clock is 2 s ahead of the database's", "use NTP")]


class SignedIn:
    """Everybody is signed in, with the role that the test gives."""

    def __init__(self, role: Role = "operator") -> None:
        self.role: Role = role

    async def viewer(self, _: web.Request) -> Viewer:
        return Viewer("ada", self.role, CSRF)


@asynccontextmanager
async def console_at(
    pool: Pool,
    *,
    people: SignedIn | None = None,
    live: Live | None = None,
    port: int = 0,
    spell: timedelta = SPELL,
    routes: Sequence[web.AbstractRouteDef] | None = None,
    **sources: Any,
) -> AsyncIterator[str]:
    """Serve the page and ``routes`` (``/v1``) for the length of the block; yield the address of the host."""

    async def unready() -> str | None:
        return None

    async def examine(_: str) -> Sequence[Finding]:
        return FINDINGS

    examinations = Examinations("", examine)
    given = {"examination": examinations.latest, **sources}
    console = Console(Sources(Changes(pool), **given), live, spell)
    served = OperatorApi(Changes(pool), examinations).routes() if routes is None else routes
    guard = RequestGuard(None, people or SignedIn())
    app = private_app(unready, [*console.routes(), *served], middlewares=[guard.middleware])
    app.on_shutdown.append(console.close)
    async with serving(app, port, setting="none", host="127.0.0.1") as bound:
        yield f"http://127.0.0.1:{bound}"


@asynccontextmanager
async def opened(browser: Browser, url: str, **options: Any) -> AsyncIterator[Page]:
    """Open a page. Check at the end that no script failed and that the policy refused nothing."""
    given: Mapping[str, Any] = {"viewport": {"width": 1280, "height": 800}, **options}
    problems: list[str] = []
    context = await browser.new_context(**given)
    context.set_default_timeout(PATIENCE)
    page = await context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if "Security Policy" in said.text else None)
    await page.goto(url)
    yield page
    await context.close()
    assert problems == []


async def accessible(page: Page, within: str | None = None) -> list[str]:
    """Return what axe finds wrong with a page, or within what a CSS selector names."""
    from axe_playwright_python.async_playwright import Axe  # noqa: PLC0415

    found = (await Axe().run(page, within)).response["violations"]
    return [f"{each['id']}: {node['html'][:160]}" for each in found for node in each["nodes"]]

"""The pages on which an install ends: ours, or a team's own."""

from html import escape
from pathlib import Path
from string import Template

from aiohttp import web
from slack_sdk.oauth.installation_store import Installation

from surelane.errors import SettingsError

INSTALL = "/slack/install"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline' https:; img-src https: data:; font-src https:;"
    " form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
SLACK_CLIENT = "https://app.slack.com/client/"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_FRAME = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>$title</title>
<style>body {{ font: 18px/1.5 system-ui, sans-serif; max-width: 36rem; margin: 4rem auto; padding: 0 1rem }}</style>
</head><body><h1>$title</h1>
{body}
</body></html>
"""
_SUCCESS = _FRAME.format(
    body='<p>$what in $workspace. <a href="$open_url">Open Slack</a>,'
    ' or <a href="$browser_url">open it in the browser</a>.</p>'
)
_FAILURE = _FRAME.format(
    body='<p>$reason</p>\n<p>Nothing was stored. <a href="$install_url">Try again</a>.</p>\n<p><small>$code</small></p>'
)


class InstallFailedError(Exception):
    """An install that ended without one. The page says why. ``code``: a word for support. ``status``: of the page."""

    def __init__(self, code: str, reason: str, *, status: int = 400, title: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.status = status
        self.title = title


class Pages:
    """Make the pages from templates with ``$names``. Each value is escaped for HTML."""

    def __init__(self, directory: Path | None = None, client: str = SLACK_CLIENT) -> None:
        """Read the team's own pages, if there is a directory. :class:`SettingsError`: one cannot be read.

        ``client``: the address of Slack in the browser; the id of a workspace follows it.
        """
        self._success = Template(_SUCCESS if directory is None else _read(directory / "success.html"))
        self._client = client
        self._failure = Template(_FAILURE if directory is None else _read(directory / "failure.html"))

    def success(self, installed: Installation, owner: str, *, connected: bool = False) -> web.Response:
        workspace = installed.team_name or installed.enterprise_name or "Slack"
        what = "Your account is connected" if connected else "The app is installed"
        return self.ended(what, workspace, owner, installed.app_id)

    def ended(self, what: str, where: str, owner: str, app_id: str | None) -> web.Response:
        """Return the page of what succeeded in a workspace or at a server. It leads to Slack."""
        opening = f"slack://app?team={owner}&id={app_id or ''}"
        shown = {"workspace": where, "open_url": opening, "browser_url": f"{self._client}{owner}"}
        return _page(self._success, 200, title="Thank you", what=what, **shown)

    def failure(self, error: InstallFailedError, again: str, title: str) -> web.Response:
        """Return the page of what failed. ``again``: where to begin anew. ``title``: where the error has none."""
        shown = {"title": error.title or title, "reason": str(error), "code": error.code}
        return _page(self._failure, error.status, install_url=again, **shown)


def _page(template: Template, status: int, **values: str) -> web.Response:
    text = template.safe_substitute({name: escape(value) for name, value in values.items()})
    return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError(f"SURELANE_INSTALL_PAGES: {path} cannot be read: {error}") from error

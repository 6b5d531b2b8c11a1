"""The pages that end an install. A team may bring its own; either way, no script runs on them."""

from html import escape
from pathlib import Path
from string import Template

from aiohttp import web

from surelane.errors import SettingsError

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
    body='<p>The app is installed in $workspace. <a href="$open_url">Open Slack</a>,'
    ' or <a href="$browser_url">open it in the browser</a>.</p>'
)
_FAILURE = _FRAME.format(
    body='<p>$reason</p>\n<p>Nothing was stored. <a href="$install_url">Try again</a>.</p>\n<p><small>$code</small></p>'
)


class Pages:
    """Make the pages from templates with ``$names``. Each value is escaped for HTML."""

    def __init__(self, directory: Path | None = None, client: str = SLACK_CLIENT) -> None:
        """Read the templates.

        Args:
            directory: the team's own pages.
            client: the address of Slack in the browser; the id of a workspace follows it.

        Raises:
            SettingsError: the directory lacks one, or it cannot be read.
        """
        self._success = Template(_SUCCESS if directory is None else _read(directory / "success.html"))
        self._client = client
        self._failure = Template(_FAILURE if directory is None else _read(directory / "failure.html"))

    def success(self, *, workspace: str, app_id: str, owner_id: str) -> web.Response:
        return _page(
            self._success,
            200,
            title="Thank you",
            workspace=workspace,
            open_url=f"slack://app?team={owner_id}&id={app_id}",
            browser_url=f"{self._client}{owner_id}",
        )

    def failure(self, status: int, *, title: str, reason: str, code: str, install_url: str) -> web.Response:
        """Return the page after an install that failed. ``code`` is a word for support."""
        return _page(self._failure, status, title=title, reason=reason, code=code, install_url=install_url)


def _page(template: Template, status: int, **values: str) -> web.Response:
    text = template.safe_substitute({name: escape(value) for name, value in values.items()})
    return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SettingsError(f"SURELANE_INSTALL_PAGES: {path} cannot be read: {error}") from error

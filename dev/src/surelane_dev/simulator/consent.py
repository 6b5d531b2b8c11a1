"""Serve Slack's pages of OAuth and to sign in: a person chooses a workspace, and approves or cancels."""

from html import escape
from urllib.parse import urlencode, urljoin, urlsplit

from aiohttp import web

from surelane_dev.simulator.control.acts import SIMULATOR
from surelane_dev.simulator.installs import AuthorizeRequest
from surelane_dev.simulator.simulator import Simulator
from surelane_service.service_settings import DEMO_CLIENT_ID

PATH, SIGN_IN = "/oauth/v2/authorize", "/openid/connect/authorize"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Install {name} · simulated Slack</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/base.css"><link rel="stylesheet" href="/page/consent.css">
</head><body class="consent"><main>
<h1>Install {name}?</h1>
<form method="post" action="{path}?{query}">
<fieldset><legend>Where</legend>
{choices}
</fieldset>
{people}{scopes}<p class="buttons"><button class="primary" name="decision" value="approve">Allow</button>
<button class="small" name="decision" value="cancel">Cancel</button></p>
</form></main></body></html>
"""


async def show(request: web.Request) -> web.Response:
    """Show the page."""
    asked = _asked(request)
    if isinstance(asked, str):
        return web.Response(status=400, text=asked)
    simulator = request.app[SIMULATOR]
    choices = _choices(simulator)
    first = request.query.get("team") or next(iter(choices))
    lines = [
        f'<label><input type="radio" name="team" value="{escape(value)}"{" checked" if value == first else ""}> '
        f"{escape(name)}</label>"
        for value, name in choices.items()
    ]
    scopes = _scopes("The bot asks for", asked.scopes) + _scopes("For you it asks for", asked.user_scopes)
    people = _people(simulator) if asked.user_scopes else ""
    query, choice = escape(request.query_string), "\n".join(lines)
    said = {"name": escape(simulator.manifest.name), "people": people, "scopes": scopes}
    page = _PAGE.format(path=request.path, query=query, choices=choice, **said)
    return web.Response(text=page, content_type="text/html")


async def decide(request: web.Request) -> web.Response:
    """Send the person back to the app, with a code or the refusal."""
    asked = _asked(request)
    if isinstance(asked, str):
        return web.Response(status=400, text=asked)
    simulator, given = request.app[SIMULATOR], await request.post()
    state = request.query.get("state", "")
    if given.get("decision") != "approve":
        raise _back(asked, error="access_denied", state=state)
    chosen = str(given.get("team", ""))
    workspace = simulator.installs.named(chosen)
    if workspace is None:
        return web.Response(status=400, text="there is no such workspace")
    person = workspace.user(str(given.get("user", "")))
    user, wide = None if person is None else person.id, chosen == workspace.enterprise_id
    code = simulator.installs.approve(asked, workspace, wide=wide, user=user)
    raise _back(asked, code=code, state=state)


def _back(asked: AuthorizeRequest, **query: str) -> web.HTTPFound:
    return web.HTTPFound(f"{asked.redirect_uri}{'&' if '?' in asked.redirect_uri else '?'}{urlencode(query)}")


def _asked(request: web.Request) -> AuthorizeRequest | str:
    query = request.query
    if query.get("client_id") != DEMO_CLIENT_ID:
        return "invalid_client_id: the simulator has one app, with the demo client id"
    default = urljoin(request.app[SIMULATOR].settings.install_url, "oauth_redirect")
    scopes = query.get("scope", ""), query.get("user_scope", "")
    if request.path == SIGN_IN:
        scopes = "", scopes[0]
    asked = AuthorizeRequest(query.get("redirect_uri") or default, *scopes)
    if urlsplit(asked.redirect_uri).scheme not in ("http", "https"):
        return "bad_redirect_uri"
    return asked if asked.scopes or asked.user_scopes else "invalid_scope: the link asks for nothing"


def _choices(simulator: Simulator) -> dict[str, str]:
    workspaces = simulator.installs.workspaces.values()
    choices = {each.team_id: each.name for each in workspaces}
    return choices | {
        each.enterprise_id: "Acme Grid, all its workspaces" for each in workspaces if each.enterprise_id
    }


def _people(simulator: Simulator) -> str:
    """Return a choice of who approves. Without one, it is the workspace's first person."""
    named = {person.name for each in simulator.installs.workspaces.values() for person in each.people()}
    options = "".join(f"<option>{escape(name)}</option>" for name in sorted(named))
    return f'<p><label>As <select name="user"><option value="">…</option>{options}</select></label></p>\n'


def _scopes(words: str, scopes: str) -> str:
    listed = "".join(f"<li><code>{escape(each)}</code></li>" for each in scopes.replace(",", " ").split())
    return f'<div><p>{words}</p><ul class="scopes">{listed}</ul></div>\n' if listed else ""


ROUTES = [
    route(path, handler)
    for path in (PATH, SIGN_IN)
    for route, handler in ((web.get, show), (web.post, decide))
]

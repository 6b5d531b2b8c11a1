"""Put the guard and the sign-in together, as the settings say."""

from aiohttp import web
from pydantic import SecretStr

from surelane.calls import Calls
from surelane_operator.console.access.access_settings import AccessSettings
from surelane_operator.console.access.guard import Credentials, Guard
from surelane_operator.console.access.oidc import Provider
from surelane_operator.console.access.sessions import ProxyHeaders, Sessions, Signer, Used
from surelane_operator.console.access.sign_in import CALLBACK, Oidc, Render, SignIn
from surelane_operator.console.access.viewer import Groups, Role, Tokens


def access_of(
    settings: AccessSettings, render: Render, headers: dict[str, str], database: Calls
) -> tuple[Guard, list[web.AbstractRouteDef]]:
    """Return the guard and the routes of the sign-in, as the settings say.

    ``headers`` are those of the sign-in page. ``database`` keeps which sessions and links count no more.
    """
    given = _tokens(settings)
    tokens = Tokens(given) if given else None
    if settings.sign_in is None:
        return Guard(tokens), []
    groups = Groups(settings.viewer_groups, settings.operator_groups)
    signer, ways, links, oidc = Signer(settings.signing_key), dict[Role, str](), None, None
    if settings.sign_in == "token":
        ways, links = given, Signer(given["operator"])
    elif settings.sign_in == "oidc":
        client = f"{settings.oidc_issuer} {settings.oidc_client_id}"
        ways["viewer"] = f"{client} {sorted(groups.viewers)}"
        ways["operator"] = f"{client} {sorted(groups.operators)}"
        oidc = Oidc(_provider(settings), groups, settings.oidc_groups_claim)
    https = (settings.console_url or "").startswith("https:")
    browser: Credentials = (sessions := Sessions(signer, Used(database), ways, https=https))
    if settings.sign_in == "proxy":
        names = settings.proxy_user_header or "", settings.proxy_groups_header
        browser = ProxyHeaders(*names, settings.proxy_networks, groups, signer)
    sign_in = SignIn(sessions, render, headers, tokens=tokens if links else None, links=links, oidc=oidc)
    return Guard(tokens, browser, sign_in.away), sign_in.routes()


def _tokens(settings: AccessSettings) -> dict[Role, str]:
    given: list[tuple[Role, SecretStr | None]] = [
        ("viewer", settings.api_viewer_token),
        ("operator", settings.api_token),
    ]
    return {role: secret.get_secret_value().strip() for role, secret in given if secret}


def _provider(settings: AccessSettings) -> Provider:
    secret = settings.oidc_client_secret
    return Provider(
        settings.oidc_issuer or "",
        settings.oidc_client_id or "",
        secret.get_secret_value() if secret else "",
        f"{settings.console_url}{CALLBACK}",
        scopes=settings.oidc_scopes,
    )

"""Put the guard and the sign-in together, as the settings say."""

from dataclasses import dataclass

from aiohttp import web

from surelane_operator.console.access.groups import Groups
from surelane_operator.console.access.guard import Credentials, Guard
from surelane_operator.console.access.oidc import Provider
from surelane_operator.console.access.proxy import ProxyHeaders
from surelane_operator.console.access.sessions import Sessions, Signer
from surelane_operator.console.access.settings import AccessSettings
from surelane_operator.console.access.sign_in import CALLBACK, HOME, Oidc, Render, SignIn
from surelane_operator.console.access.tokens import Codes, Tokens
from surelane_operator.console.access.viewer import Role


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the page and ``/v1``: the guard of both, and the routes of the sign-in."""

    guard: Guard
    routes: list[web.AbstractRouteDef]


def access_of(settings: AccessSettings, render: Render, headers: dict[str, str]) -> Access:
    """Return the access that the settings ask for.

    Args:
        settings: they are complete; :class:`AccessSettings` checks it.
        render: renders the sign-in page.
        headers: of the sign-in page.
    """
    tokens = _tokens(settings)
    if settings.sign_in is None:
        return Access(Guard(tokens), [])
    signer = Signer(settings.signing_key)
    sessions = Sessions(signer, https=(settings.console_url or "").startswith("https:"))
    groups = Groups(settings.viewer_groups, settings.operator_groups)
    browser: Credentials = sessions
    oidc = None
    if settings.sign_in == "oidc":
        oidc = Oidc(_provider(settings), groups, settings.oidc_groups_claim)
    elif settings.sign_in == "proxy":
        browser = ProxyHeaders(
            settings.proxy_user_header or "",
            settings.proxy_groups_header,
            settings.proxy_networks,
            groups,
            signer,
        )
    sign_in = SignIn(
        sessions, signer, render, headers, tokens=tokens if settings.sign_in == "token" else None, oidc=oidc
    )
    return Access(Guard(tokens, browser), sign_in.routes())


def sign_in_link(base: str, key: str) -> str:
    """Return a link that signs in once, within minutes.

    Args:
        base: the address of the private port.
        key: that of sessions: ``SURELANE_CONSOLE_KEY``, else ``SURELANE_API_TOKEN``.
    """
    return f"{base}{HOME}sign-in/link?code={Codes(Signer(key)).make()}"


def _tokens(settings: AccessSettings) -> Tokens | None:
    given: list[tuple[object, Role]] = [
        (settings.api_viewer_token, "viewer"),
        (settings.api_token, "operator"),
    ]
    roles = {str(secret.get_secret_value()).strip(): role for secret, role in given if secret}  # type: ignore[attr-defined]
    return Tokens(roles) if roles else None


def _provider(settings: AccessSettings) -> Provider:
    secret = settings.oidc_client_secret
    return Provider(
        settings.oidc_issuer or "",
        settings.oidc_client_id or "",
        secret.get_secret_value() if secret else "",
        f"{settings.console_url}{CALLBACK}",
        scopes=settings.oidc_scopes,
    )

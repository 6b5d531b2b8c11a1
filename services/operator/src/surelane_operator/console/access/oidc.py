"""An OpenID Connect provider: where people sign in, and what its signed answer says about them."""

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import jwt

from surelane.errors import SurelaneError
from surelane.slack import object_in
from surelane_operator.roles import Groups, Role
from surelane_service.outbound import received

ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures by a private key only: our secret must not sign what we take for the provider's."""
_REQUIRED: Any = {"require": ["exp", "iat", "aud", "iss", "sub"]}
LEEWAY = 60
"""Seconds by which the clocks may differ."""
FRESH = 3600.0
"""Seconds for which the provider's addresses and keys are kept."""
REREAD = 30.0
"""Seconds between two readings of the keys because of an unknown one, at least."""
LONGEST_EMAIL = 100
LONGEST_SUB = 255
"""Characters of a person's identifier, at most, as OpenID Connect bounds it."""
TIMEOUT = aiohttp.ClientTimeout(total=10)


class SignInRefused(SurelaneError):  # noqa: N818 - it is an answer
    """The provider did not sign this person in."""


class ProviderUnavailable(SurelaneError):  # noqa: N818 - named for what happened
    """The provider does not answer, or not as OpenID Connect says."""


@dataclass(eq=False, repr=False)
class Provider:
    """One provider, for one client of it. A person's ``groups`` are in the claim of that name.

    It must have signed the person in by one of the classes ``acr``, and by one of the methods ``amr``, where some are.
    """

    issuer: str
    client_id: str
    client_secret: str
    redirect_uri: str
    scopes: str
    groups: Groups
    claim: str
    acr: Sequence[str] = ()
    amr: Collection[str] = ()

    def __post_init__(self) -> None:
        self._metadata: tuple[float, dict[str, Any]] | None = None
        self._keys: tuple[float, list[jwt.PyJWK]] | None = None
        self._reading = asyncio.Lock()

    @property
    def name(self) -> str:
        """The provider's host, for people."""
        return urlsplit(self.issuer).hostname or self.issuer

    async def sign_in_address(self, state: str, nonce: str, verifier: str) -> str:
        """Return the address at which a person signs in, or raise ProviderUnavailable."""
        digest = hashlib.sha256(verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect_uri,
            "scope": self.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        if self.acr:
            query["acr_values"] = " ".join(self.acr)
        address = (await self._configuration())["authorization_endpoint"]
        return f"{address}{'&' if urlsplit(address).query else '?'}{urlencode(query)}"

    async def claims(self, code: str, nonce: str, verifier: str) -> dict[str, Any]:
        """Exchange the code of a sign-in for what the provider says about the person, or raise ProviderUnavailable.

        Where the provider refuses the code, or its answer is not meant for this sign-in, raise SignInRefused.
        """
        token = await self._exchange(code, verifier)
        claims = await self._verified(token)
        if claims.get("nonce") != nonce:
            raise SignInRefused("the answer belongs to another sign-in")
        if self.acr and claims.get("acr") not in self.acr:
            raise SignInRefused("the sign-in is of none of the classes in SURELANE_CONSOLE_OIDC_ACR")
        methods = claims.get("amr")
        if self.amr and not (isinstance(methods, list) and any(each in self.amr for each in methods)):
            raise SignInRefused("the sign-in is by none of the methods in SURELANE_CONSOLE_OIDC_AMR")
        return claims

    def role_of(self, claims: Mapping[str, Any]) -> Role | None:
        """Return the role of a person by their groups; ``None``: they may not see the page."""
        listed = claims.get(self.claim)
        groups = [str(group) for group in listed] if isinstance(listed, list) else []
        return self.groups.role([listed] if isinstance(listed, str) else groups)

    async def _exchange(self, code: str, verifier: str) -> str:
        configuration = await self._configuration()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.redirect_uri,
            "code_verifier": verifier,
        }
        headers = {"Accept": "application/json"}
        basic = "client_secret_basic"  # what a provider supports that does not say so
        if basic in configuration.get("token_endpoint_auth_methods_supported", [basic]):
            pair = f"{quote(self.client_id, safe='')}:{quote(self.client_secret, safe='')}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        else:
            form |= {"client_id": self.client_id, "client_secret": self.client_secret}
        status, answer = await _request("POST", configuration["token_endpoint"], data=form, headers=headers)
        token = answer.get("id_token")
        if status >= 500:
            raise ProviderUnavailable(f"the provider answered {status}")
        if status != 200 or not isinstance(token, str):
            raise SignInRefused(f"the provider refused the code: {str(answer.get('error', status))[:100]}")
        return token

    async def _verified(self, token: str) -> dict[str, Any]:
        try:
            key = await self._key(jwt.get_unverified_header(token).get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token, key, ALGORITHMS, _REQUIRED, audience=self.client_id, issuer=self.issuer, leeway=LEEWAY
            )
        except jwt.PyJWTError as error:
            raise SignInRefused(f"the provider's answer does not hold: {type(error).__name__}") from None
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if (several or "azp" in claims) and claims.get("azp") != self.client_id:
            raise SignInRefused("the provider's answer is for another client")
        if not 0 < len(claims["sub"]) <= LONGEST_SUB:
            raise SignInRefused("the provider's answer identifies no person")
        return claims

    async def _key(self, kid: str | None) -> jwt.PyJWK:
        """Return the key of a signature. An unknown one is looked for again, but not more often than `REREAD`."""
        for lasts in (FRESH, REREAD):
            for key in await self._read_keys(lasts):
                if kid is None or key.key_id == kid:
                    return key
        raise jwt.InvalidKeyError("no such key")

    async def _read_keys(self, lasts: float) -> list[jwt.PyJWK]:
        async with self._reading:
            if self._keys is None or time.monotonic() - self._keys[0] >= lasts:
                _, answer = await _request("GET", (await self._configuration())["jwks_uri"])
                try:
                    found = jwt.PyJWKSet.from_dict(answer).keys
                except jwt.PyJWTError:
                    raise ProviderUnavailable("the provider's keys cannot be read") from None
                signing = [
                    key for key in found if key.key_type != "oct" and key.public_key_use in (None, "sig")
                ]
                self._keys = (time.monotonic(), signing)
            return self._keys[1]

    async def _configuration(self) -> dict[str, Any]:
        if self._metadata is None or time.monotonic() - self._metadata[0] >= FRESH:
            address = self.issuer.rstrip("/") + "/.well-known/openid-configuration"
            _, found = await _request("GET", address)
            if found.get("issuer") != self.issuer:
                raise ProviderUnavailable(f"{address} names another issuer")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                if not isinstance(found.get(name), str) or not is_safe(found[name]):
                    raise ProviderUnavailable(f"{address} has no {name} that can be used")
            self._metadata = (time.monotonic(), found)
        return self._metadata[1]


def name_of(claims: dict[str, Any]) -> str:
    """Return a person's name for the page and the kept actions.

    Only issuer and sub identify a person. People may choose the other claims, even an e-mail that is not verified.
    """
    person = f"{claims['sub']} at {claims['iss']}"
    email = claims.get("email")
    if claims.get("email_verified") is True and isinstance(email, str) and email:
        return f"{email[:LONGEST_EMAIL]} ({person})"
    return person


def is_safe(address: str) -> bool:
    """Return whether an address has HTTPS, or is on this machine."""
    try:
        parsed = urlsplit(address)
        host = parsed.hostname or ""
    except ValueError:
        return False
    is_here = parsed.scheme == "http" and host in ("127.0.0.1", "::1", "localhost")
    return bool(host) and (parsed.scheme == "https" or is_here)


async def _request(method: str, address: str, **options: Any) -> tuple[int, dict[str, Any]]:  # noqa: ANN401 - aiohttp's
    """Send a request; return its status, and its JSON object or an empty one."""
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.request(method, address, allow_redirects=False, **options) as response,
        ):
            if (body := await received(response)) is None:
                raise ProviderUnavailable("the provider's answer is too large")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ProviderUnavailable(f"the provider does not answer: {type(error).__name__}") from None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    return response.status, object_in(value)

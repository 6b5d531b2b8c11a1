"""A small OpenID Connect provider over HTTP: discovery, keys, sign-in with PKCE, and tokens that a test may spoil."""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import jwt
from aiohttp import BasicAuth, web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from surelane_service.probes import serving

CLIENT, SECRET = "surelane-console", "s3cret: of the client"


class Answers:
    """What the provider answers."""

    def __init__(self) -> None:
        self.issuer = ""
        self.keys_read = 0
        self._claims: dict[str, Any] = {}
        self._signed = "right"
        self._codes: dict[str, dict[str, str]] = {}
        self._key, self._kid = _new_key(), "key-1"

    @contextmanager
    def saying(self, signed: str = "right", **claims: Any) -> Iterator[None]:
        """Put these claims into ID tokens, and sign them so; ``None`` leaves a claim out."""
        self._signed, self._claims = signed, claims
        try:
            yield
        finally:
            self._signed, self._claims = "right", {}

    def rotate(self) -> None:
        """Replace the key."""
        self._key, self._kid = _new_key(), secrets.token_hex(4)

    async def configuration(self, _: web.Request) -> web.Response:
        at = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
        addresses = {name: self.issuer + path for name, path in at.items()}
        return web.json_response({"issuer": self.issuer, **addresses})

    async def keys(self, request: web.Request) -> web.StreamResponse:
        self.keys_read += 1
        public = jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        body = json.dumps({"keys": [{**public, "kid": self._kid, "use": "sig", "alg": "ES256"}]}).encode()
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(body[:20])
        await asyncio.sleep(0.02)  # the rest is a packet of its own
        await response.write(body[20:])
        return response

    async def authorize(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(8)
        self._codes[code] = query
        raise web.HTTPFound(f"{query['redirect_uri']}?code={code}&state={query['state']}")

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        given = BasicAuth.decode(request.headers["Authorization"])
        assert given.login == CLIENT
        started = self._codes.pop(str(form["code"]), None)
        challenge = _part(hashlib.sha256(str(form["code_verifier"]).encode()).digest())
        expected = {"code_challenge": challenge, "redirect_uri": form["redirect_uri"]}
        if started is None or not expected.items() <= started.items():
            return web.json_response({"error": "invalid_grant"}, status=400)
        now = int(time.time())
        usual = {"iss": self.issuer, "aud": CLIENT, "sub": "u1", "iat": now, "exp": now + 300}
        claims = {**usual, "nonce": started["nonce"], **self._claims}
        claims = {name: value for name, value in claims.items() if value is not None}
        return web.json_response(
            {"token_type": "Bearer", "access_token": "x", "id_token": self._sign(claims)}
        )

    def _sign(self, claims: dict[str, Any]) -> str:
        headers = {"kid": self._kid}
        match self._signed:
            case "none":
                return jwt.encode(claims, "", "none", headers)
            case "HS256 by the secret":
                return jwt.encode(claims, SECRET.ljust(32, "."), "HS256", headers)
            case "HS256 by the public key":
                public = self._key.public_key().public_bytes(
                    serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
                )
                parts = ({"alg": "HS256", "typ": "JWT", **headers}, claims)
                text = ".".join(_part(json.dumps(part).encode()) for part in parts)
                return f"{text}.{_part(hmac.digest(public, text.encode(), 'sha256'))}"
            case "a foreign key":
                return jwt.encode(claims, _new_key(), "ES256", headers)
        return jwt.encode(claims, self._key, "ES256", headers)


def _part(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@asynccontextmanager
async def provider_at() -> AsyncIterator[Answers]:
    """Serve a provider for the length of the block."""
    answers = Answers()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", answers.configuration)
    app.router.add_get("/keys", answers.keys)
    app.router.add_get("/authorize", answers.authorize)
    app.router.add_post("/token", answers.token)
    async with serving(app, 0, setting="none", host="127.0.0.1") as port:
        answers.issuer = f"http://127.0.0.1:{port}"
        yield answers

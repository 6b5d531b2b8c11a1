"""Signed requests between programs, by the rules of Standard Webhooks (https://www.standardwebhooks.com).

A request carries ``webhook-id``, ``webhook-timestamp`` and ``webhook-signature``: HMAC-SHA256 over
``id.timestamp.body``, in base64, after ``v1,``; several signatures are separated by spaces. Secrets are ``whsec_`` and
the key in base64.

A remote agent and we share one secret. The id therefore holds the direction of a request and its task, and a
request cannot be sent back as an answer. ADR 0027 says why this module uses no library for it.
"""

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BeforeValidator, SecretBytes
from pydantic_settings import NoDecode

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE = 300
"""Seconds by which a request's timestamp may differ from the clock, in either direction."""
SHORTEST_KEY, LONGEST_KEY = 24, 64
MOST_SIGNATURES = 10
_LENGTH = len("v1,") + 44
_PREFIX = "whsec_"
_ID = re.compile(r"[\x21-\x7e]{1,127}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_TIMESTAMP = re.compile(r"\d{1,12}", re.ASCII)


def sign(identity: str, body: bytes, keys: Sequence[bytes], now: float | None = None) -> dict[str, str]:
    """Return the headers that sign ``body`` with each key: two during a rotation.

    ``identity``: the request's id, the same each time it is sent. ``now``: seconds since the epoch, by default the
    clock's.
    """
    timestamp = str(int(time.time() if now is None else now))
    signatures = [_signature(identity, timestamp, body, key) for key in keys]
    return {ID: identity, TIMESTAMP: timestamp, SIGNATURE: " ".join(signatures)}


def task_id(identity: int | str) -> str:
    """Return the ``webhook-id`` of a task for a remote agent."""
    return f"dispatch-{identity}"


def answer_id(identity: int | str) -> str:
    """Return the ``webhook-id`` of a remote agent's answer to a task."""
    return f"answer-{identity}"


def plausible(headers: Mapping[str, str], now: float | None = None) -> str | None:
    """Return the id in a request's headers, or ``None`` where they cannot belong to a signed request.

    Call it before reading the body, so that a request that cannot be signed costs no memory.
    """
    identity, timestamp = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    if not _ID.fullmatch(identity) or not _TIMESTAMP.fullmatch(timestamp):
        return None
    if abs((time.time() if now is None else now) - int(timestamp)) > TOLERANCE:
        return None
    signatures = headers.get(SIGNATURE, "").split(" ")[:MOST_SIGNATURES]
    may_hold = any(len(given) == _LENGTH and given.startswith("v1,") for given in signatures)
    return identity if may_hold else None


def verified(
    headers: Mapping[str, str], body: bytes, keys: Sequence[bytes], now: float | None = None
) -> str | None:
    """Return the id of a request that was signed with one of ``keys`` in the last five minutes, else ``None``."""
    identity, timestamp = plausible(headers, now), headers.get(TIMESTAMP, "")
    if identity is None:
        return None
    given = [text.encode("utf-8", "replace") for text in headers[SIGNATURE].split(" ")[:MOST_SIGNATURES]]
    wanted = [_signature(identity, timestamp, body, key).encode() for key in keys]
    # Compare all, so that the duration does not depend on which one matches.
    matches = [hmac.compare_digest(mine, theirs) for mine in wanted for theirs in given]
    return identity if any(matches) else None


def _signature(identity: str, timestamp: str, body: bytes, key: bytes) -> str:
    digest = hmac.new(key, f"{identity}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def read_secrets(text: str) -> dict[str, list[bytes]]:
    """Read ``name=whsec_…|whsec_…,name2=whsec_…``: return the keys of each name.

    Raises:
        ValueError: it has another form, or a key is not base64 of 24 to 64 bytes. Never quotes a secret.
    """
    found: dict[str, list[bytes]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, secrets = part.partition("=")
        name = name.strip()
        if not secrets or name in found or not _NAME.fullmatch(name):
            raise ValueError("write name=whsec_…|whsec_…,name2=whsec_…, each name once")
        found[name] = [_key(secret.strip()) for secret in secrets.split("|")]
    return found


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        raise ValueError(
            f"a secret is not whsec_ and base64 of {SHORTEST_KEY} to {LONGEST_KEY} bytes:"
            ' make one with echo "whsec_$(openssl rand -base64 32)"'
        )
    return key


def _read(value: object) -> object:
    return read_secrets(value) if isinstance(value, str) else value


Secrets = Annotated[dict[str, list[SecretBytes]], NoDecode, BeforeValidator(_read)]
"""A settings field that takes what :func:`read_secrets` reads."""


def keys_of(secrets: Mapping[str, Sequence[SecretBytes]], name: str) -> list[bytes]:
    """Return the keys of a name; none where there is no such name."""
    return [secret.get_secret_value() for secret in secrets.get(name, ())]

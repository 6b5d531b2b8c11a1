"""Encrypt secrets before they are stored, with the keys in ``SURELANE_ENCRYPTION_KEYS``.

The first key encrypts, and every key decrypts. So a new key is put in front of the old one, ``surelane keys rotate``
encrypts what is stored again, and then the old key can go.

A sealed value is a version byte, the key's id, a random nonce, and the text encrypted by AES-256-GCM. The place that
it is stored in is authenticated with it: a copy in another row does not open. See ADR 0066.
"""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Sequence
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from surelane.codec import SETTING, SealedError

KEY_BYTES = 32
ID_BYTES = 8
NONCE_BYTES = 12
TAG_BYTES = 16
_VERSION = b"\x01"
HEADER = len(_VERSION) + ID_BYTES
"""Bytes in front of the nonce: the version and the key's id. SQL reads the key's id there, too."""


class Keyring:
    """Seals and opens small secrets. A key may seal 2³² values, because nonces are random.

    ``current_id``: the id of the key that encrypts.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        """Take at least one key, in base64; the first one encrypts.

        Raises:
            ValueError: there is none, one is not 32 bytes in base64, or one is there twice. It quotes no key.
        """
        if not keys:
            raise ValueError(f"{SETTING} holds no key: make one with surelane keys new")
        raw = [_raw(key, nth) for nth, key in enumerate(keys, 1)]
        self._ciphers = {_id_of(key): AESGCM(key) for key in raw}
        if len(self._ciphers) < len(raw):
            raise ValueError("the same key is there twice")
        self._signing = [hmac.digest(key, b"surelane signing key", "sha256") for key in raw]
        self.current_id = _id_of(raw[0])

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Return the keyring of keys separated by commas; ``None``: there is none. ``ValueError``: as for the class."""
        keys = [part.strip() for part in text.split(",") if part.strip()]
        return cls(keys) if keys else None

    def seal(self, plain: bytes, place: str) -> bytes:
        """Encrypt a secret for the place where it is stored, such as a table and a row's key."""
        nonce = os.urandom(NONCE_BYTES)
        header = _VERSION + self.current_id
        return header + nonce + self._ciphers[self.current_id].encrypt(nonce, plain, header + place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """Decrypt what was sealed for this place.

        :class:`SealedError`: its key is not in the list, or it was changed or copied from another place.
        """
        header, nonce = sealed[:HEADER], sealed[HEADER : HEADER + NONCE_BYTES]
        if len(sealed) < HEADER + NONCE_BYTES + TAG_BYTES or sealed[:1] != _VERSION:
            raise SealedError("it is damaged, or a newer release encrypted it")
        cipher = self._ciphers.get(sealed[1:HEADER])
        if cipher is None:
            raise SealedError(
                f"it was encrypted with the key {sealed[1:HEADER].hex()}, which {SETTING} lacks"
            )
        try:
            return cipher.decrypt(nonce, sealed[HEADER + NONCE_BYTES :], header + place.encode())
        except InvalidTag:
            raise SealedError("it is damaged, or belongs to another row") from None

    def sign(self, text: bytes, purpose: str) -> bytes:
        """Sign a text with a key that follows from the first one. ``purpose`` keeps uses apart."""
        return _signature(self._signing[0], text, purpose)

    def signed(self, text: bytes, signature: bytes, purpose: str) -> bool:
        """Return whether a key of the list signed a text for this purpose."""
        matches = [hmac.compare_digest(_signature(key, text, purpose), signature) for key in self._signing]
        return any(matches)

    def is_current(self, sealed: bytes) -> bool:
        """Return whether the first key sealed it."""
        return sealed[1:HEADER] == self.current_id


def new_key() -> str:
    """Make a random key, as the setting takes it."""
    return base64.urlsafe_b64encode(AESGCM.generate_key(KEY_BYTES * 8)).decode()


def _signature(key: bytes, text: bytes, purpose: str) -> bytes:
    return hmac.digest(key, purpose.encode() + b"\0" + text, "sha256")


def _raw(key: str, nth: int) -> bytes:
    try:
        raw = base64.b64decode(key.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != KEY_BYTES:
        raise ValueError(f"key {nth} is not {KEY_BYTES} bytes in base64: make one with surelane keys new")
    return raw


def _id_of(key: bytes) -> bytes:
    """Return a name of a key that tells nothing about it."""
    return hashlib.sha256(b"surelane key id" + key).digest()[:ID_BYTES]

"""The ciphers of one data key: each is derived from the key and a salt, and kept as long as the key."""

import hmac
import os
from collections import OrderedDict

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SALT_BYTES = 16
MOST_VALUES = 2**20
"""Values that one cipher encrypts. AES-GCM with random nonces is safe for 2³²."""
MOST_KEPT = 16
"""Ciphers that a data key keeps to decrypt: one for each process that encrypted lately."""

_forks = 0
"""How often this process and those before it were forked."""


def _forked() -> None:
    global _forks  # noqa: PLW0603 - one number for the process
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class Ciphers:
    """Derives ciphers from one data key.

    Making one costs more than encrypting a value with it. So a process encrypts many values with one, and keeps those
    that it decrypts with.
    """

    __slots__ = ("_current", "_forks", "_kept", "_left", "_raw", "_salt")

    def __init__(self, raw: bytes) -> None:
        """``raw``: the data key."""
        self._raw = raw
        self._kept: OrderedDict[bytes, AESGCM] = OrderedDict()
        self._left = 0
        self._forks = _forks
        self._salt = b""
        self._current: AESGCM | None = None

    def current(self) -> tuple[bytes, AESGCM]:
        """Return the cipher for one new value, and its salt. No other process uses the salt to encrypt."""
        if self._current is None or self._left <= 0 or self._forks != _forks:
            self._forks = _forks
            self._salt = os.urandom(SALT_BYTES)
            self._current = self._derived(self._salt)
            self._left = MOST_VALUES
        self._left -= 1
        return self._salt, self._current

    def of(self, salt: bytes) -> AESGCM:
        """Return the cipher of a salt, to decrypt."""
        cipher = self._kept.get(salt)
        if cipher is None:
            cipher = self._kept[salt] = self._derived(salt)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return cipher

    def kept(self) -> int:
        """Return how many ciphers are kept to decrypt."""
        return len(self._kept)

    def _derived(self, salt: bytes) -> AESGCM:
        return AESGCM(hmac.digest(self._raw, b"surelane value key" + salt, "sha256"))

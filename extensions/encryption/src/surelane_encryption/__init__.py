"""Encrypts what Surelane stores of people: payloads, results, steps and tokens. See docs/encryption.md.

:class:`Encryption` is for programs: ``Queue(connection, encryption=Encryption(keys, database))``.
"""

from surelane_encryption.program import Encryption

__all__ = ["Encryption"]

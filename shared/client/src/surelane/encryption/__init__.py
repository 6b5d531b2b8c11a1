"""Encryption of what people wrote, with the keys in ``SURELANE_ENCRYPTION_KEYS``: see docs/encryption.md.

:class:`Encryption` is for programs: ``Queue(connection, encryption=Encryption(keys, database))``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surelane.encryption.program import Encryption as Encryption

__all__ = ["Encryption"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's attribute
    """Import :class:`Encryption` on first use: a program without encryption does not need its libraries."""
    if name != "Encryption":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from surelane.encryption.program import Encryption  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "surelane":
            raise
        raise ModuleNotFoundError(
            f"surelane.encryption needs {error.name}: pip install 'surelane[encryption]'", name=error.name
        ) from None
    return Encryption

"""Why a turn cannot go on, and why a file of the settings cannot be used."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from surelane.errors import SettingsError

DOWN = "I cannot answer now: the model does not respond. Please ask again later."
REFUSED = "I cannot answer this. The people who run me can see why."
"""What people are told where a turn ends by :class:`UnavailableError` or :class:`ModelRefusedError`."""


class ModelError(Exception):
    """A turn cannot go on. The message has no secrets: history keeps it."""


class UnavailableError(ModelError):
    """The model or a tool's server cannot be reached now; another attempt may succeed."""

    def __init__(self, message: str, after: float | None = None) -> None:
        """``after``: the seconds that the server asks to wait."""
        super().__init__(message)
        self.after = after


class ModelRefusedError(ModelError):
    """The model will refuse this request each time."""


class StoppedError(ModelError):
    """The turn ends here: it has used what it may use, or a guard or the model refuses. The message is for people."""

    def __init__(self, message: str, answer: str | None = None) -> None:
        """``answer``: what the model has said of its answer."""
        super().__init__(message)
        self.answer = answer


@contextmanager
def told_of(setting: str, path: Path) -> Iterator[None]:
    """Raise :class:`SettingsError` where a setting's file cannot be used in the block. It quotes no values."""
    try:
        yield
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise SettingsError(f"{setting}: {path}: {'; '.join(wrong)}") from None
    except (OSError, ValueError, ExceptionGroup) as error:
        reasons = error.exceptions if isinstance(error, ExceptionGroup) else [error]
        raise SettingsError(f"{setting}: {path}: {'; '.join(map(str, reasons))}") from None

"""Why a turn cannot go on."""


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

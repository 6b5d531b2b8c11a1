# ruff: noqa: ARG002 - what stores values as they are uses few of the arguments
"""How values are stored: :class:`Codec`, whose subclass in the extension ``surelane-encryption`` encrypts them.

The core calls a codec wherever it writes or reads what people wrote. By default that is :data:`PLAIN`.
Where a value is stored is part of it: a sealed value opens in its own :class:`Location` alone. See ADR 0071.
"""

import json
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from surelane.events import Event
from surelane.json_text import mended, read_json

if TYPE_CHECKING:
    from surelane.calls import Connection, Pool

SETTING = "SURELANE_ENCRYPTION_KEYS"
SEALED = "surelane.sealed"
"""The field that holds a sealed value. The object around it may have more fields, which SQL reads."""
ENCRYPTED = "encrypted"
"""What stands in the clear in place of an error's message, or of a reason in free words."""
RESULT, ERROR, ANSWER, SAID, REASON = "result", "error", "answer", "said", "reason"
"""What of an event is stored: its result, its errors, its answer to Slack, what it says, the reason for a rating."""
PROGRESS = ("progress", 0)
"""The step that holds an event's progress: its name and number. The numbers of a handler's own steps begin with 1."""
_WORDS = ("message", "traceback")
_CONTENT = "content"
"""The field of an error's record that holds the sealed words."""
CURRENT: ContextVar[str | None] = ContextVar("workspace", default=None)
"""The workspace of the event whose handler runs. A codec's :meth:`Codec.enter` sets it."""


class SealedError(Exception):
    """A value cannot be sealed or opened. The message says why, and holds no part of it."""


class NoKeyError(SealedError):
    """A value cannot be opened with the keys of this process. Another process may have the key."""


class KeyDestroyedError(SealedError):
    """The data key of a value was destroyed: its workspace was erased."""

    def __init__(self) -> None:
        super().__init__("its data key was destroyed, as its workspace was erased")


class DamagedError(SealedError):
    """A sealed value was changed, or moved to another row."""

    def __init__(self) -> None:
        super().__init__("it is damaged, or was changed in the database")


@dataclass(frozen=True, slots=True)
class Location:
    """Where a value is stored: an event, and what of it. ``None``: the writer knows no event, so any may take it.

    ``rerun_of``: the events that it runs again. It has some of their steps and signals.
    """

    event: int | None
    what: str
    rerun_of: Collection[int] = ()


def at_step(event: int, name: str, nth: int, part: str = "step") -> Location:
    """Return the location of a step's result, or of another ``part`` of it."""
    return Location(event, f"{part} {nth} {name}")


def at_signal(event: int | None, name: str) -> Location:
    """Return the location of a signal's value, and of the result of the wait that takes it."""
    return Location(event, f"signal {name}")


def at_tag(event: int, name: str) -> Location:
    """Return the location of a tag's value."""
    return Location(event, f"tag {name}")


class Codec:
    """Stores values as they are. Its subclasses seal them before they are stored, and open those that are read.

    A sealed value is a JSON object with the field :data:`SEALED`. Each method may raise :class:`SealedError`. One that
    asks the database may raise :class:`surelane.errors.SurelaneError`, too.
    """

    on = False
    """Whether new values are sealed. Where it is false, a caller may store a value without a call."""

    async def ready(self, workspace: str) -> None:
        """Make the key of a workspace, for programs, which make none."""

    async def seal_event(
        self, text: str, key: str | None, payload: Mapping[str, Any] | None = None
    ) -> tuple[str, str | None]:
        """Seal an event of Slack's, JSON text whose value is ``payload``. Return it with its natural key.

        A natural key that the database would make of the whole content is replaced: others could guess that by it.
        """
        return text, key

    async def seal_payload(
        self,
        value: Any,  # noqa: ANN401 - any JSON value
        *,
        of: int | None = None,
        like: str | None = None,
        part: bool = False,
    ) -> Any:  # noqa: ANN401 - any JSON value
        """Seal a job's payload: a JSON value, a pydantic model or a dataclass.

        Args:
            of: the event whose workspace it is of, unless it names one; by default the event whose handler runs.
            like: the JSON text that it replaces. If that is sealed, it is, too, even where new values are not.
            part: whether it is only a part of a payload: a webhook's.

        Raises:
            InvalidInput: it is not JSON that PostgreSQL can hold.
        """
        if like is not None:
            await self.open(like)  # what is sealed is not replaced by what is not
        return value

    async def seal(self, text: str, at: Location) -> str:
        """Seal another value, JSON text: a result, a step, a signal, an answer."""
        return text

    async def seal_error(self, record: dict[str, Any], at: Location) -> dict[str, Any]:
        """Seal what an error's record says in words."""
        if not self.on:
            return record
        words = {name: record[name] for name in _WORDS if name in record}
        rest = {name: part for name, part in record.items() if name not in _WORDS}
        return {
            **rest,
            "message": ENCRYPTED,
            _CONTENT: json.loads(await self.seal(mended(json.dumps(words)), at)),
        }

    async def tag_key(self, name: str, value: str) -> str:
        """Return by what a sealed tag is found in all workspaces."""
        return value

    async def open_events(self, events: Sequence[Event], *, required: bool = False) -> None:
        """Open the payloads of claimed events. ``required``: raise if one cannot be; else it stays as it is."""
        if required:
            self.enter(events)

    def enter(self, events: Sequence[Event]) -> Awaitable[None] | None:
        """Open events for their handler, and set :data:`CURRENT`; ``None``: there is nothing to wait for."""
        for event in events:
            if SEALED in event.body and has_sealed(event.payload):
                raise _locked()
        return None

    async def open(self, text: str, at: Location | None = None) -> str:
        """Open a stored value, JSON text. A payload has no location."""
        if SEALED in text and has_sealed(json.loads(text)):
            raise _locked()
        return text

    async def show(self, value: Any, at: Location | None = None) -> Any:  # noqa: ANN401 - any JSON value
        """Open a stored JSON value or an error's record for people. Where that is impossible, say why in its place."""
        if isinstance(value, dict) and is_sealed(value.get(_CONTENT)):
            words = await self.show(value[_CONTENT], at)
            rest = {name: part for name, part in value.items() if name != _CONTENT}
            return {**rest, **({"message": words[SEALED]} if SEALED in words else words)}
        try:
            return read_json(await self.open(json.dumps(value), at)) if has_sealed(value) else value
        except SealedError as error:
            if is_sealed(value):
                return {**value, SEALED: f"cannot be decrypted: {error}"}
            return {**value, **{name: await self.show(inner, at) for name, inner in sealed_fields(value)}}


PLAIN = Codec()


@runtime_checkable
class SecretKeys(Protocol):
    """The keys of :data:`SETTING`. They seal small secrets: tokens, and the keys of a codec."""

    def seal(self, plain: bytes, place: str) -> bytes:
        """Seal a secret for the place where it is stored, such as a table and a row's key."""

    def open(self, sealed: bytes, place: str) -> bytes:
        """Open what was sealed for this place, or raise :class:`SealedError`."""

    def sign(self, text: bytes, purpose: str) -> bytes:
        """Sign a text. ``purpose`` keeps uses apart."""

    def signed(self, text: bytes, signature: bytes, purpose: str) -> bool:
        """Return whether a key of the list signed a text for this purpose."""


def read_keys(text: str) -> SecretKeys | None:
    """Read :data:`SETTING`; ``None``: it is empty.

    Raises:
        ValueError: the extension that has the entry point is not installed, or a key is malformed. It quotes no key.
    """
    keys: SecretKeys | None = _extension("keys")(text) if text.strip() else None
    return keys


def codec_of(keys: SecretKeys | None, database: "Pool | Connection", *, on: bool) -> Codec:
    """Return what seals with keys, where it is ``on``; without keys :data:`PLAIN`. It asks the database for more."""
    codec: Codec = PLAIN if keys is None else _extension("codec")(keys, database, on=on)
    return codec


def _extension(name: str) -> Any:  # noqa: ANN401 - what an entry point names
    for entry in entry_points(group="surelane.codec", name=name):
        return entry.load()
    raise ValueError(f"{SETTING} is set; install surelane-encryption")


def is_sealed(value: object) -> bool:
    return isinstance(value, dict) and SEALED in value


def sealed_fields(value: object) -> list[tuple[str, dict[str, Any]]]:
    """Return the fields of an object that hold sealed values: a webhook's payload, a signal's value."""
    if not isinstance(value, dict):
        return []
    return [(name, value[name]) for name in ("payload", "value") if is_sealed(value.get(name))]


def has_sealed(value: object) -> bool:
    """Return whether a stored payload is sealed, or one of its fields is."""
    return is_sealed(value) or bool(sealed_fields(value))


def _locked() -> NoKeyError:
    return NoKeyError(f"it is encrypted, and {SETTING} is not set here")

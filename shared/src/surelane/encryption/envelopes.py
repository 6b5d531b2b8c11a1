"""Sealed values: JSON objects that hold an encrypted value beside the few fields that stay in the clear.

The value is encrypted with a workspace's data key. What SQL and operators need of an event stays beside it, in its
place: ids, timestamps and types, no text. Handlers get the value alone. See ADR 0071.
"""

import binascii
import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any

from cryptography.exceptions import InvalidTag

from surelane.encryption.ciphers import SALT_BYTES, Ciphers
from surelane.encryption.keys import ID_BYTES, KEY_BYTES, NONCE_BYTES, TAG_BYTES, SealedError
from surelane.encryption.packing import pack, unpack

SEALED = "surelane.sealed"
"""The field that holds the encrypted value."""
IDS = "surelane.ids"
"""The field with the ids of people, channels and workspaces that stand in the value, so that erasing finds them."""
WORKSPACE = "surelane.workspace"
"""The field with the workspace of a value that does not name one itself."""
NOTHING = "{}"
"""The clear part of a value that has none, JSON text."""
EVENT, VALUE = b"event", b"value"
"""What is sealed: the payload of an event, or another value. One does not open as the other."""
CONTENT_KEY = "sealed:"
"""How the natural key of an event begins that Slack gave none."""

_VERSION = b"\x01"
_HEADER = len(_VERSION) + ID_BYTES
_BEFORE_NONCE = _HEADER + SALT_BYTES
_BEFORE_TEXT = _BEFORE_NONCE + NONCE_BYTES
_FIELD = f'"{SEALED}": "'

MOST_CLEAR = 200
"""Characters of a field that stays in the clear."""
_MENTION = re.compile(r"<[@#]([UWC][A-Z0-9]{2,20})")
_WHOLE = re.compile(r'"([UWCDGTEB](?=[A-Z]*[0-9])[A-Z0-9]{8,20})"')
"""What may be an id where it is a whole value: one that has a digit."""
_SHARED = "is_ext_shared_channel"
_CLEAR = frozenset(
    ("type", "command", "channel_type", "ts", "thread_ts", "event_ts", "user_id", "channel_id", "team_id")
)
_CLEAR_OUTSIDE = _CLEAR | {"enterprise_id", "event_id", "event_time", "agent", _SHARED}
_NAMED_OBJECTS = ("channel", "user", "team", "enterprise")
"""Fields that hold an id, or an object with one."""
_PARTS = {
    "item": ("channel", "ts"),
    "message": ("ts", "thread_ts", "user"),
    "container": ("message_ts", "thread_ts", "channel_id"),
}
_USUAL = _CLEAR | {*_NAMED_OBJECTS}
_USUAL_OUTSIDE = (_CLEAR_OUTSIDE | _USUAL) - {"event_time", _SHARED}
_OBJECTS = frozenset(("actions", "view", *_PARTS))
_MOST_USUAL = 60
"""Fields of a usual message and its envelope."""
_WORD = re.compile(r"[!#-\[\]-~]+")
"""A text that is the same in JSON: ASCII without spaces, quotation marks and backslashes."""
_OWN = "surelane."
"""How the ids of the worker's own buttons and modals begin: the kind of their clicks follows from it."""


class DamagedError(SealedError):
    """A sealed value was changed."""

    def __init__(self) -> None:
        super().__init__("it is damaged, or was changed in the database")


@dataclass(frozen=True, slots=True)
class DataKey:
    """The key that encrypts the values of one workspace.

    A value's key is derived from it and 16 random bytes, the salt. A process encrypts many values with one salt. So a
    workspace may have any number of values.

    Attributes:
        id: names it in each value that it sealed.
        workspace: the workspace's id; empty for what belongs to none.
        raw: the key itself.
        ciphers: those of its values. They are kept as long as this object.
    """

    id: bytes
    workspace: str
    raw: bytes = field(repr=False)
    ciphers: Ciphers = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ciphers", Ciphers(self.raw))

    @classmethod
    def new(cls, workspace: str) -> "DataKey":
        """Make a random key."""
        return cls(os.urandom(ID_BYTES), workspace, os.urandom(KEY_BYTES))

    def place(self) -> str:
        """Return the place for which the key itself is sealed."""
        return json.dumps(["data_key", self.workspace, self.id.hex()])

    def seal(self, text: str, clear: str = NOTHING, purpose: bytes = VALUE) -> str:
        """Return JSON text as a sealed value, JSON text as well, with the fields of ``clear`` beside it.

        ``clear`` is the JSON text of an object.
        """
        salt, cipher = self.ciphers.current()
        nonce, header = os.urandom(NONCE_BYTES), _VERSION + self.id
        packed = pack(text, payload=purpose == EVENT)
        sealed = header + salt + nonce + cipher.encrypt(nonce, packed, header + purpose)
        encoded = binascii.b2a_base64(sealed, newline=False).decode()
        named = ",".join([f'"{name}"' for name in _further_ids(text, clear)])
        return f'{clear[:-1]}{"," if clear != NOTHING else ""}"{IDS}":[{named}],"{SEALED}":"{encoded}"}}'

    def open(self, sealed: str | bytes, purpose: bytes = VALUE) -> str:
        """Return the JSON text that this key sealed. ``sealed`` is the field :data:`SEALED` of a value.

        Raises:
            DamagedError: it was changed, or sealed for another purpose.
        """
        raw = sealed if isinstance(sealed, bytes) else decoded(sealed)
        cipher, nonce = self.ciphers.of(raw[_HEADER:_BEFORE_NONCE]), raw[_BEFORE_NONCE:_BEFORE_TEXT]
        try:
            return unpack(cipher.decrypt(nonce, raw[_BEFORE_TEXT:], raw[:_HEADER] + purpose))
        except (InvalidTag, ValueError):
            raise DamagedError from None

    def content_key(self, text: str) -> str:
        """Return the natural key of an event that has none: who lacks the data key cannot guess the text by it."""
        derived = hmac.digest(self.raw, b"surelane content key", "sha256")
        return CONTENT_KEY + hmac.new(derived, text.encode(), hashlib.sha256).hexdigest()


def is_sealed(value: object) -> bool:
    """Return whether a JSON value is a sealed one."""
    return isinstance(value, dict) and SEALED in value


def has_sealed(value: object) -> bool:
    """Return whether a stored payload is sealed, or one of its fields is."""
    return is_sealed(value) or bool(sealed_fields(value))


def sealed_fields(value: object) -> list[tuple[str, dict[str, Any]]]:
    """Return the fields of an object that hold sealed values: a webhook's payload, a signal's value."""
    if not isinstance(value, dict):
        return []
    return [(name, value[name]) for name in ("payload", "value") if is_sealed(value.get(name))]


def workspace_of_sealed(value: object) -> str:
    """Return the workspace of a sealed payload."""
    given = value.get(WORKSPACE) if isinstance(value, dict) else None
    return given if isinstance(given, str) else workspace_of(value)


def decoded(sealed: object) -> bytes:
    """Return the bytes of a field :data:`SEALED`.

    Raises:
        DamagedError: it cannot be one.
    """
    try:
        raw = binascii.a2b_base64(sealed, strict_mode=True) if isinstance(sealed, str) else b""
    except ValueError:
        raise DamagedError from None
    if len(raw) < _BEFORE_TEXT + TAG_BYTES or raw[:1] != _VERSION:
        raise DamagedError
    return raw


def key_id_of(sealed: bytes) -> bytes:
    """Return the id of the data key that sealed a value, by the bytes of its field :data:`SEALED`."""
    return sealed[len(_VERSION) : _HEADER]


def sealed_text(body: str) -> str | None:
    """Return the first field :data:`SEALED` in JSON text that the database wrote; ``None``: there is none."""
    begin = body.find(_FIELD)
    return None if begin < 0 else body[begin + len(_FIELD) : body.index('"', begin + len(_FIELD))]


def clear_part(value: object) -> dict[str, Any]:
    """Return the fields of a payload that stay in the clear: what SQL reads of it, and no text.

    ``agent.event_kind``, ``agent.event_group_key``, ``agent.event_workspace``, ``agent.event_channel``,
    ``agent.event_user`` and ``agent.event_time`` return the same for it as for the payload.
    """
    return _part(value, _CLEAR_OUTSIDE) if isinstance(value, dict) else {}


def clear_text(value: object, workspace: str = "") -> str:
    """Return :func:`clear_part` as JSON text, with the field :data:`WORKSPACE` if ``workspace`` is given."""
    if not workspace and isinstance(value, dict) and (text := _usual_text(value)) is not None:
        return text
    clear = clear_part(value)
    return json.dumps({**clear, WORKSPACE: workspace} if workspace else clear)


def workspace_of(value: object) -> str:
    """Return the workspace of a payload, as ``agent.event_workspace`` does."""
    if not isinstance(value, dict):
        return ""
    team = value.get("team_id")
    if not isinstance(team, str):
        team = value.get("team")
        team = team.get("id") if isinstance(team, dict) else team
    return team if isinstance(team, str) and len(team) <= 100 and _is_clear(team) else ""


def _part(value: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    part: dict[str, Any] = {}
    for name, found in value.items():
        if name in names or name in _NAMED_OBJECTS:
            if _is_clear(found):
                part[name] = found
            elif name in _NAMED_OBJECTS and isinstance(found, dict):
                part[name] = _fields(found, ("id",))
        elif name in _PARTS and isinstance(found, dict):
            part[name] = _fields(found, _PARTS[name])
        elif name == "event" and isinstance(found, dict) and names is _CLEAR_OUTSIDE:
            part[name] = _part(found, _CLEAR)
    return part | _own_ids(value)


def _usual_text(value: dict[str, Any]) -> str | None:
    """Return :func:`clear_part` as JSON text at a third of its cost; ``None``: the payload is no usual message."""
    event, happened, shared = value.get("event"), value.get("event_time"), value.get(_SHARED)
    if not isinstance(event, dict) or type(happened) is not int or len(event) + len(value) > _MOST_USUAL:
        return None
    inside, outside = _usual_words(event, _USUAL), _usual_words(value, _USUAL_OUTSIDE)
    if inside is None or outside is None or not (shared is None or isinstance(shared, bool)):
        return None
    flag = "" if shared is None else f',"{_SHARED}":{"true" if shared else "false"}'
    return f'{{"event":{{{inside}}},{outside},"event_time":{happened}{flag}}}'


def _usual_words(value: dict[str, Any], names: frozenset[str]) -> str | None:
    """Return the named fields of an object as JSON text; ``None``: one of them is not a word of plain ASCII."""
    form = _form(tuple(value), names)
    if form is None:
        return None
    words = form[0](value)
    try:
        together = "".join(words)
    except TypeError:
        return None
    plain = len(together) <= MOST_CLEAR and "" not in words and _WORD.fullmatch(together)
    return form[1] % words if plain else None


@lru_cache(maxsize=256)
def _form(
    fields: tuple[str, ...], names: frozenset[str]
) -> tuple[Callable[[Any], tuple[str, ...]], str] | None:
    """Return how to read the named ones of an object's fields, and how they are written; ``None``: not as words."""
    words = [name for name in fields if name in names]
    if len(words) < 2 or not _OBJECTS.isdisjoint(fields):
        return None
    return itemgetter(*words), ",".join(f'"{name}":"%s"' for name in words)


def _own_ids(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids of the worker's own buttons and modals."""
    actions, view = value.get("actions"), value.get("view")
    if isinstance(actions, list) and actions and _is_own(actions[0], "action_id"):
        return {"actions": [{"action_id": actions[0]["action_id"]}]}
    return {"view": {"callback_id": value["view"]["callback_id"]}} if _is_own(view, "callback_id") else {}


def _fields(value: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: found for name in names if _is_clear(found := value.get(name))}


def _is_clear(value: object) -> bool:
    """Return whether a value is a number, true or false, or a text without spaces: an id, a time, a type."""
    if isinstance(value, str):
        return len(value) <= MOST_CLEAR and value.split() == [value]
    return isinstance(value, int)


def _is_own(value: object, name: str) -> bool:
    return isinstance(value, dict) and str(value.get(name)).startswith(_OWN)


def _further_ids(text: str, beside: str) -> list[str]:
    """Return the ids that stand in a text, without those that stand beside it."""
    names = _WHOLE.findall(text) + _MENTION.findall(text)
    return sorted({name for name in names if name not in beside}) if names else names

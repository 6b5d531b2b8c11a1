"""Sealed values: JSON objects that hold an encrypted value beside the few fields that stay in the clear.

The value is encrypted with a workspace's data key. What SQL and operators need of an event stays beside it, in its
place: ids, timestamps and types, no text. Handlers get the value alone. See ADR 0071.

What the run of an event stores is sealed for its location: it does not open in another event or step.
"""

import binascii
import hashlib
import hmac
import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from surelane.codec import SEALED, DamagedError, Location
from surelane.slack import READ_BY_SQL, SHARED, TEAM, own_id, text_at
from surelane.slack import workspace_of as installed_workspace
from surelane_encryption.keys import ID_BYTES, KEY_BYTES, NONCE_BYTES, TAG_BYTES
from surelane_encryption.packing import pack, unpack

SALT_BYTES = 16
DIGEST_BYTES = 16
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
    """Derives ciphers from one data key. Making one costs more than encrypting a value with it.

    So a process encrypts many values with one, and keeps those that it decrypts with.
    """

    __slots__ = ("_current", "_forks", "_kept", "_left", "_raw", "_salt")

    def __init__(self, raw: bytes) -> None:
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

_VERSION, _PLACED = b"\x01", b"\x02"
"""How a sealed value begins: for any location, or for one, whose digest stands in front of the text."""
_HEADER = len(_VERSION) + ID_BYTES
_BEFORE_NONCE = _HEADER + SALT_BYTES
_BEFORE_TEXT = _BEFORE_NONCE + NONCE_BYTES
FIELD = f'"{SEALED}": "'
"""How the field begins in JSON text that the database wrote."""

MOST_CLEAR = 200
"""Characters of a field that stays in the clear."""
_MENTION = re.compile(r"<[@#]([UWC][A-Z0-9]{2,20})")
_ID = re.compile(r"[UWCDGTEB][A-Z0-9]{8,20}(?![A-Za-z0-9])")
"""The end of a word that may be an id. Looking at the character before is left to Python: it takes a third."""
_ESCAPES = frozenset((r"\b", r"\f", r"\n", r"\r", r"\t"))
_HASHED = 16
"""Hexadecimal digits of the hash that stands for an id without a digit. SQL takes as many (agent.as_words)."""
_CLEAR = frozenset(path[0] for path in READ_BY_SQL if len(path) == 1)
_PARTS = {
    name: tuple(path[1] for path in READ_BY_SQL if path[:-1] == (name,))
    for name, *rest in READ_BY_SQL
    if rest
}
"""The fields that stay in the clear, and those within objects."""
_USUAL = _CLEAR - {"event_time", SHARED}
_OBJECTS = frozenset(("actions", "view", *_PARTS)) - _CLEAR
_MOST_USUAL = 60
"""Fields of a usual message and its envelope."""
_WORD = re.compile(r"[!#-\[\]-~]+")
"""A text that is the same in JSON: ASCII without spaces, quotation marks and backslashes."""


@dataclass(frozen=True, slots=True)
class DataKey:
    """The key that encrypts the values of one workspace, whose id is empty for what belongs to none.

    A value's key is derived from it and 16 random bytes, the salt. A process encrypts many values with one salt. So a
    workspace may have any number of values. ``id`` names the key in each of them.
    """

    id: bytes
    workspace: str
    raw: bytes = field(repr=False)
    ciphers: Ciphers = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ciphers", Ciphers(self.raw))

    @classmethod
    def new(cls, workspace: str) -> "DataKey":
        return cls(os.urandom(ID_BYTES), workspace, os.urandom(KEY_BYTES))

    def place(self) -> str:
        """Return the place for which the key itself is sealed."""
        return json.dumps(["data_key", self.workspace, self.id.hex()])

    def seal(
        self, text: str, clear: str = NOTHING, purpose: bytes = VALUE, at: Location | None = None
    ) -> str:
        """Return JSON text as a sealed value, JSON text as well, with the fields of ``clear`` beside it.

        ``clear`` is the JSON text of an object. ``at``: where alone the value opens; ``None``: anywhere.
        """
        salt, cipher = self.ciphers.current()
        nonce, header, digest = os.urandom(NONCE_BYTES), _VERSION + self.id, b""
        if at is not None:
            header, digest = _PLACED + self.id, digest_of(at)
        packed = pack(text, payload=purpose == EVENT)
        sealed = header + salt + nonce + digest + cipher.encrypt(nonce, packed, header + purpose + digest)
        encoded = binascii.b2a_base64(sealed, newline=False).decode()
        named = ",".join([f'"{name}"' for name in _further_ids(text, clear)])
        return f'{clear[:-1]}{"," if clear != NOTHING else ""}"{IDS}":[{named}],"{SEALED}":"{encoded}"}}'

    def open(self, sealed: str | bytes, purpose: bytes = VALUE, at: Location | None = None) -> str:
        """Return the JSON text that this key sealed. ``sealed`` is the field :data:`SEALED` of a value, or its bytes.

        ``at``: where it was read; ``None``: the reader does not know. A value sealed for no location opens in each.

        Raises:
            DamagedError: it was changed, or sealed for another purpose or location.
        """
        raw = sealed if isinstance(sealed, bytes) else decoded(sealed)
        cipher, nonce = self.ciphers.of(raw[_HEADER:_BEFORE_NONCE]), raw[_BEFORE_NONCE:_BEFORE_TEXT]
        begin = _BEFORE_TEXT + (DIGEST_BYTES if raw[:1] == _PLACED else 0)
        digest = raw[_BEFORE_TEXT:begin]
        if digest and at is not None and not takes(at, digest):
            raise DamagedError
        try:
            return unpack(cipher.decrypt(nonce, raw[begin:], raw[:_HEADER] + purpose + digest))
        except (InvalidTag, ValueError):
            raise DamagedError from None

    def content_key(self, text: str) -> str:
        """Return the natural key of an event that has none: who lacks the data key cannot guess the text by it."""
        derived = hmac.digest(self.raw, b"surelane content key", "sha256")
        return CONTENT_KEY + hmac.new(derived, text.encode(), hashlib.sha256).hexdigest()


def workspace_of_sealed(value: object) -> str:
    """Return the workspace of a sealed payload."""
    given = value.get(WORKSPACE) if isinstance(value, dict) else None
    return given if isinstance(given, str) else workspace_of(value)


def digest_of(location: Location) -> bytes:
    """Return what names a location in a value that is sealed for it."""
    return _digest(location.event, location.what)


def takes(location: Location, digest: bytes) -> bool:
    """Return whether a value with this digest may stand there."""
    return digest == digest_of(location) or any(
        digest == _digest(event, location.what) for event in (None, *location.rerun_of)
    )


def _digest(event: int | None, what: str) -> bytes:
    return hashlib.sha256(f"{event} {what}".encode(errors="replace")).digest()[:DIGEST_BYTES]


def decoded(sealed: object) -> bytes:
    """Return the bytes of a field :data:`SEALED`. :class:`DamagedError`: it cannot be one."""
    try:
        raw = binascii.a2b_base64(sealed, strict_mode=True) if isinstance(sealed, str) else b""
    except ValueError:
        raise DamagedError from None
    if len(raw) < _BEFORE_TEXT + TAG_BYTES or raw[:1] not in (_VERSION, _PLACED):
        raise DamagedError
    return raw


def key_id_of(sealed: bytes) -> bytes:
    """Return the id of the data key that sealed a value, by the bytes of its field :data:`SEALED`."""
    return sealed[len(_VERSION) : _HEADER]


def clear_part(value: object) -> dict[str, Any]:
    """Return the fields of a payload that stay in the clear. SQL's ``agent.event_*`` read the same of them as of it."""
    if not isinstance(value, dict):
        return {}
    inner = value.get("event")
    part = _part(value)
    if (team := workspace_of(value)) and team != text_at(part, TEAM):
        part["authorizations"] = [{"team_id": team}]  # where SQL looks first
    return part | {"event": _part(inner)} if isinstance(inner, dict) else part


def clear_text(value: object, workspace: str = "") -> str:
    """Return :func:`clear_part` as JSON text, with the field :data:`WORKSPACE` if ``workspace`` is given."""
    if not workspace and isinstance(value, dict) and (text := _usual_text(value)) is not None:
        return text
    clear = clear_part(value)
    return json.dumps({**clear, WORKSPACE: workspace} if workspace else clear)


def workspace_of(value: object) -> str:
    """Return the workspace whose data key encrypts a payload."""
    team = installed_workspace(value)
    return team if team is not None and len(team) <= 100 and _is_clear(team) else ""


def _part(value: dict[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = {}
    for name, found in value.items():
        if name in _CLEAR and _is_clear(found):
            part[name] = found
        elif name in _PARTS and isinstance(found, dict):
            part[name] = {each: there for each in _PARTS[name] if _is_clear(there := found.get(each))}
    if (own := own_id(value)) is None:
        return part
    return part | (
        {"actions": [{"action_id": own}]} if "actions" in value else {"view": {"callback_id": own}}
    )


def _usual_text(value: dict[str, Any]) -> str | None:
    """Return :func:`clear_part` as JSON text at a third of its cost; ``None``: the payload is no usual message."""
    event, happened, shared = value.get("event"), value.get("event_time"), value.get(SHARED)
    if not isinstance(event, dict) or type(happened) is not int or len(event) + len(value) > _MOST_USUAL:
        return None
    if installed_workspace(value) != text_at(value, TEAM):
        return None
    inside, outside = _usual_words(event), _usual_words(value)
    if inside is None or outside is None or not (shared is None or isinstance(shared, bool)):
        return None
    flag = "" if shared is None else f',"{SHARED}":{"true" if shared else "false"}'
    return f'{{"event":{{{inside}}},{outside},"event_time":{happened}{flag}}}'


def _usual_words(value: dict[str, Any]) -> str | None:
    """Return the clear fields of an object as JSON text; ``None``: one of them is not a word of plain ASCII."""
    form = _form(tuple(value))
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
def _form(fields: tuple[str, ...]) -> tuple[Callable[[Any], tuple[str, ...]], str] | None:
    """Return how to read the clear ones of an object's fields, and how they are written; ``None``: not as words."""
    words = [name for name in fields if name in _USUAL]
    if len(words) < 2 or not _OBJECTS.isdisjoint(fields):
        return None
    return itemgetter(*words), ",".join(f'"{name}":"%s"' for name in words)


def _is_clear(value: object) -> bool:
    """Return whether a value is a number, true or false, or a text without spaces: an id, a time, a type."""
    if isinstance(value, str):
        return len(value) <= MOST_CLEAR and value.split() == [value]
    return isinstance(value, int)


def _further_ids(text: str, beside: str) -> list[str]:
    """Return the ids in a text, wherever they stand in it, except the ids that stand beside it.

    Of twenty ids one has no digit. It may be a word that somebody wrote in capitals, so its hash is returned.
    """
    mentioned = _MENTION.findall(text)
    names = {*mentioned, *(found[0] for found in _ID.finditer(text) if _begins(text, found.start()))}
    names = {name for name in names if f'"{name}"' not in beside}
    return sorted(_hashed(name) if name.isalpha() and name not in mentioned else name for name in names)


def _begins(text: str, at: int) -> bool:
    """Return whether a word of JSON text begins there. The letter of an escape is no part of it."""
    before = text[at - 1 : at]
    return not (before.isascii() and before.isalnum()) or text[at - 2 : at] in _ESCAPES


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:_HASHED]

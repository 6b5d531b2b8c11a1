"""Encrypt what people wrote before it is stored, and decrypt what is read: payloads, results, steps, errors, signals.

It happens in the services. The database, its log and its dumps never have the text. See ADR 0071.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from weakref import ref

from surelane.encryption.data_keys import DataKeys, NoKeyError
from surelane.encryption.envelopes import (
    EVENT,
    FIELD,
    NOTHING,
    SEALED,
    VALUE,
    DamagedError,
    DataKey,
    clear_part,
    clear_text,
    decoded,
    is_sealed,
    key_id_of,
    sealed_fields,
    workspace_of,
)
from surelane.encryption.keys import SealedError
from surelane.encryption.places import Place
from surelane.errors import DatabaseUnavailable, SurelaneError, TransientConflict
from surelane.events import Event
from surelane.json_text import check_text, json_text
from surelane.slack import key_of

_CONTENT = "content"
"""The field of an error record that holds the sealed rest of it."""
ENCRYPTED = "encrypted"
"""What stands in the clear in place of an error's message, or of a reason in free words."""
_ERROR_FIELDS = ("message", "traceback")
_WORD = re.compile(r"[a-z_]{1,60}")
"""A reason that a program gave. It stays in the clear."""

_FEW = 1000
"""Events that may be gone before they are forgotten."""

CURRENT: ContextVar[str | None] = ContextVar("workspace", default=None)
"""The workspace of the event whose handler runs. Jobs of the handler without a workspace are encrypted with its key."""


_ADDED = ("cron", "scheduled_at", "failure")
"""What SQL adds to the payload of a schedule's job or a failure hook's. No other clear value has such a name."""


class Sealing:
    """Encrypts and decrypts JSON values with the workspaces' data keys."""

    def __init__(self, data_keys: DataKeys, *, on: bool) -> None:
        """``on``: whether new values are encrypted. Stored ones are decrypted in any case, if there is a keyring."""
        self.on = on
        self._data_keys = data_keys
        self._events: dict[int, ref[Event]] = {}
        self._prune_at = _FEW

    # --- Encrypting

    async def key_for(self, workspace: str) -> DataKey:
        return self._data_keys.kept(workspace) or await self._data_keys.current(workspace)

    async def event(
        self, text: str, key: str | None, payload: Mapping[str, Any] | None = None
    ) -> tuple[str, str | None]:
        """Encrypt an event of Slack's, JSON text, whose value is ``payload``. Return it with its natural key.

        A natural key that follows from its whole content is replaced: others could guess the content by it.
        """
        check_text(text)
        payload = json.loads(text) if payload is None else payload
        workspace = workspace_of(payload)
        data_key = await self.key_for(workspace)
        if key is None and key_of(payload) is None:
            key = data_key.content_key(text)
        return data_key.seal(text, clear_text(payload), EVENT), key

    async def payload(
        self,
        value: Any,  # noqa: ANN401 - any JSON value
        workspace: str | None = None,
        purpose: bytes = EVENT,
        place: Place | None = None,
    ) -> dict[str, Any]:
        """Encrypt a job's payload: a JSON value, a pydantic model or a dataclass.

        Args:
            workspace: whose key to use where it names no workspace; by default that of the event that is handled.
            purpose: whether it is the whole payload, or a part of it.
            place: where alone it opens; a payload has none.

        Raises:
            InvalidInput: it is not JSON that PostgreSQL can hold.
        """
        fallback = CURRENT.get() if workspace is None else workspace
        text = json_text(value)
        check_text(text)
        plain = json.loads(text)  # the payload may be a model
        named = workspace_of(plain)
        data_key = await self.key_for(named or fallback or "")
        beside = clear_text(plain, "" if named else data_key.workspace)
        sealed: dict[str, Any] = json.loads(data_key.seal(text, beside, purpose, place))
        return sealed

    async def value(self, text: str, workspace: str | None = None, place: Place | None = None) -> str:
        """Encrypt another value of an event, JSON text, for its place: a result, a step, a signal."""
        check_text(text)
        data_key = await self.key_for((CURRENT.get() if workspace is None else workspace) or "")
        return data_key.seal(text, _posted(text), VALUE, place)

    async def tag_key(self, name: str, value: str) -> str:
        """Return by what an encrypted tag is found in all workspaces: a keyed hash of its name and value."""
        return (await self.key_for("")).content_key(json.dumps(["tag", name, value]))

    async def errors(
        self, records: Sequence[dict[str, Any]], workspace: str, place: Place
    ) -> list[dict[str, Any]]:
        data_key = await self.key_for(workspace)
        return [_sealed_error(record, data_key, place) for record in records]

    @staticmethod
    def reason(given: str | None) -> str | None:
        """Return a reason for history: a program's word as it is, and free words not."""
        return given if given is None or _WORD.fullmatch(given) else ENCRYPTED

    def workspace_of(self, identity: int) -> str:
        """Return the workspace of an event that this process has claimed, by its id."""
        found = self._events.get(identity)
        event = None if found is None else found()
        return "" if event is None else event.workspace or ""

    # --- Decrypting

    async def open_events(self, events: Sequence[Event]) -> None:
        """Decrypt the events that can be. The others stay as they are; :meth:`enter` says why."""
        sealed = [
            (event, raw)
            for event in events
            if event.workspace is None and (raw := _first_sealed(event.body)) is not None
        ]
        if sealed:
            try:
                keys = await self._data_keys.by_ids({key_id_of(raw) for _, raw in sealed if raw})
            except SurelaneError:
                keys = {}
            for event, raw in sealed:
                _open_event(event, raw, keys)
        if self.on:
            for event in events:
                if event.workspace is None and not _is_locked(event):
                    event.workspace = workspace_of(event.payload)
                self._events[event.id] = ref(event)
            self._prune()

    def _prune(self) -> None:
        """Forget the events that are gone, once half of them may be. A WeakValueDictionary costs several times more."""
        if len(self._events) > self._prune_at:
            self._events = {
                identity: event for identity, event in self._events.items() if event() is not None
            }
            self._prune_at = _FEW + 2 * len(self._events)

    async def enter(self, events: Sequence[Event]) -> None:
        """Do as :meth:`require`, for a handler. From here on, jobs that name no workspace are of the first event's."""
        await self.require(events)
        CURRENT.set(events[0].workspace)

    def entered(self, events: Sequence[Event]) -> bool:
        """Do as :meth:`enter` where encryption is off and no event was encrypted. Return whether that is so."""
        if self.on:
            return False
        for event in events:
            if event.workspace is not None or SEALED in event.body:
                return False
        CURRENT.set(None)
        return True

    async def require(self, events: Sequence[Event]) -> None:
        """Decrypt the events that still are encrypted, and make sure that their results can be encrypted.

        ``SealedError`` says why it cannot.
        """
        try:
            for event in events:
                if event.workspace is None and _is_locked(event):
                    await self._unlock(event)
                if self.on and self._data_keys.kept(workspace := event.workspace or "") is None:
                    await self._data_keys.current(workspace)
        except (DatabaseUnavailable, TransientConflict) as error:
            raise NoKeyError(f"its data key could not be read: {type(error).__name__}") from error

    async def _unlock(self, event: Event) -> None:
        await self.open_events([event])
        if _is_locked(event):
            for value, purpose, place in _sealed_in(event.payload):
                await self._text(value, purpose, place)  # says why

    async def opened(self, value: Any, place: Place | None = None) -> Any:  # noqa: ANN401 - any JSON value
        """Decrypt a stored JSON value, or the sealed value in one of its fields. ``SealedError`` says why it cannot."""
        if is_sealed(value):
            return _with_added(json.loads(await self._text(value, None, place)), value)
        for name, inner in sealed_fields(value):
            value = {**value, name: json.loads(await self._text(inner, VALUE, place))}
        return value

    async def text(self, stored: str, place: Place) -> str:
        """Decrypt a stored value, as JSON text. ``SealedError`` says why it cannot."""
        if SEALED not in stored:
            return stored
        value = json.loads(stored)
        # The text itself: reading and writing it would change some numbers.
        if is_sealed(value):
            return await self._text(value, VALUE, place)
        return json.dumps(await self.opened(value, place))

    async def shown(self, value: Any, place: Place | None = None) -> Any:  # noqa: ANN401 - any JSON value
        """Decrypt a stored value for people; where that is impossible, say why in its place."""
        try:
            return await self.opened(value, place)
        except SealedError as error:
            if is_sealed(value):
                return {**value, SEALED: f"cannot be decrypted: {error}"}
            fields = sealed_fields(value)
            return {**value, **{name: await self.shown(inner, place) for name, inner in fields}}

    async def shown_errors(self, records: Sequence[Mapping[str, Any]], place: Place) -> list[dict[str, Any]]:
        """Decrypt error records for people."""
        shown = [dict(record) for record in records]
        for record in shown:
            if is_sealed(record.get(_CONTENT)):
                opened = await self.shown(record.pop(_CONTENT), place)
                record.update({"message": opened[SEALED]} if SEALED in opened else opened)
        return shown

    async def _text(self, value: Mapping[str, Any], purpose: bytes | None, place: Place | None = None) -> str:
        raw = decoded(value[SEALED])
        identity = key_id_of(raw)
        key = (await self._data_keys.by_ids([identity])).get(identity)
        if key is None:
            raise await self._data_keys.why_missing(identity)
        if purpose is not None or place is not None:
            return key.open(raw, purpose or VALUE, place)
        try:
            return key.open(raw)
        except DamagedError:
            return key.open(raw, EVENT)


def _posted(text: str) -> str:
    """Return where a stored question was posted, and by whose installation, as JSON text: SQL reads it."""
    if '"ts"' not in text or '"channel"' not in text:
        return NOTHING
    clear = clear_part(json.loads(text))
    names = ("channel", "ts", "thread_ts", "team_id", "enterprise_id")
    return json.dumps({name: clear[name] for name in names if name in clear})


def _sealed_error(record: dict[str, Any], key: DataKey, place: Place) -> dict[str, Any]:
    content = {name: record[name] for name in _ERROR_FIELDS if name in record}
    rest = {name: part for name, part in record.items() if name not in _ERROR_FIELDS}
    sealed = key.seal(json.dumps(content), NOTHING, VALUE, place)
    return {**rest, "message": ENCRYPTED, _CONTENT: json.loads(sealed)}


def _sealed_in(payload: object) -> Iterator[tuple[dict[str, Any], bytes, Place | None]]:
    """Yield the sealed values of a payload, itself or those of its fields, with their purpose and place."""
    if isinstance(payload, dict) and SEALED in payload:
        yield payload, EVENT, None
    else:
        yield from ((value, VALUE, _place_in(name)) for name, value in sealed_fields(payload))


def _place_in(name: str) -> Place | None:
    """Return the place of a payload's field: in ``value``, the database gives a job a question of any event."""
    return None if name == "value" else Place(None, name)


def _first_sealed(body: str) -> bytes | None:
    """Return the first sealed value in JSON text that the database wrote; empty: damaged; ``None``: there is none."""
    begin = body.find(FIELD)
    if begin < 0:
        return None
    begin += len(FIELD)
    try:
        return decoded(body[begin : body.index('"', begin)])
    except DamagedError:
        return b""


def _is_locked(event: Event) -> bool:
    """Return whether an event still is to be decrypted. Its text may also quote the field's name."""
    return event.workspace is None and SEALED in event.body and any(True for _ in _sealed_in(event.payload))


def _open_event(event: Event, sealed: bytes, keys: Mapping[bytes, DataKey]) -> None:
    """Put the decrypted payload in its place, if a key opens it."""
    if not sealed:
        _open_fields(event, keys)
    elif (key := keys.get(key_id_of(sealed))) is not None:
        try:
            opened = key.open(sealed, EVENT)
            if any(f'"{name}"' in event.body for name in _ADDED):
                opened = json.dumps(_with_added(json.loads(opened), event.payload))
            event.body, event.workspace = opened, key.workspace
        except DamagedError:
            _open_fields(event, keys)
    vars(event).pop("payload", None)  # it is parsed anew


def _open_fields(event: Event, keys: Mapping[bytes, DataKey]) -> None:
    """Decrypt the fields of a payload that is not sealed as a whole: a webhook's."""
    opened, workspace = event.payload, None
    try:
        for name, value in sealed_fields(opened):
            raw = decoded(value[SEALED])
            key = keys[key_id_of(raw)]
            opened = {**opened, name: json.loads(key.open(raw, VALUE, _place_in(name)))}
            workspace = key.workspace
    except (DamagedError, KeyError):
        return
    if workspace is not None:
        event.body, event.workspace = json.dumps(opened), workspace


def _with_added(opened: Any, stored: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """Return a decrypted payload with what SQL added beside the encrypted one."""
    added = {name: stored[name] for name in _ADDED if name in stored}
    return {**opened, **added} if added and isinstance(opened, dict) else opened

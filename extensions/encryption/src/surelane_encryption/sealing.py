"""Encrypt what people wrote before it is stored, and decrypt what is read: payloads, results, steps, errors, signals.

It happens in the services. The database, its log and its dumps never have the text. See ADR 0071.
"""

import json
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any
from weakref import ref

from surelane.calls import Connection, Pool
from surelane.codec import (
    CURRENT,
    SEALED,
    Codec,
    DamagedError,
    Location,
    NoKeyError,
    has_sealed,
    is_sealed,
    sealed_fields,
)
from surelane.errors import DatabaseUnavailable, SurelaneError, TransientConflict
from surelane.events import Event
from surelane.json_text import check_text, json_text
from surelane.slack import key_of
from surelane_encryption.data_keys import DataKeys
from surelane_encryption.envelopes import (
    EVENT,
    FIELD,
    NOTHING,
    VALUE,
    DataKey,
    clear_part,
    clear_text,
    decoded,
    key_id_of,
    workspace_of,
    workspace_of_sealed,
)
from surelane_encryption.keys import Keyring

_FEW = 1000
"""Events that may be gone before they are forgotten."""
_ADDED = ("cron", "scheduled_at", "failure")
"""What SQL adds to the payload of a schedule's job or a failure hook's. No other clear value has such a name."""


class Sealing(Codec):
    """Encrypts and decrypts JSON values with the workspaces' data keys."""

    def __init__(self, data_keys: DataKeys, *, on: bool) -> None:
        """``on``: whether new values are encrypted. Stored ones are decrypted in any case."""
        self.on = on
        self._data_keys = data_keys
        self._events: dict[int, ref[Event]] = {}
        self._prune_at = _FEW

    # --- Encrypting

    async def ready(self, workspace: str) -> None:
        if self.on:
            await self._key(workspace)

    async def _key(self, workspace: str) -> DataKey:
        return self._data_keys.kept(workspace) or await self._data_keys.current(workspace)

    async def seal_event(
        self, text: str, key: str | None, payload: Mapping[str, Any] | None = None
    ) -> tuple[str, str | None]:
        if not self.on:
            return text, key
        check_text(text)
        payload = json.loads(text) if payload is None else payload
        data_key = await self._key(workspace_of(payload))
        if key is None and key_of(payload) is None:
            key = data_key.content_key(text)
        return data_key.seal(text, clear_text(payload), EVENT), key

    async def seal_payload(
        self,
        value: Any,  # noqa: ANN401 - any JSON value
        *,
        of: int | None = None,
        like: str | None = None,
        part: bool = False,
    ) -> Any:  # noqa: ANN401 - any JSON value
        replaced = None if like is None else json.loads(like)
        if not (self.on or has_sealed(replaced)):
            return value
        text = json_text(value)
        check_text(text)
        plain = json.loads(text)  # the payload may be a model
        named = workspace_of(plain)
        data_key = await self._key(named or workspace_of_sealed(replaced) or self.workspace_of(of))
        beside = clear_text(plain, "" if named else data_key.workspace)
        return json.loads(data_key.seal(text, beside, VALUE if part else EVENT))

    async def seal(self, text: str, at: Location) -> str:
        if not self.on:
            return text
        check_text(text)
        data_key = await self._key(self.workspace_of(at.event))
        return data_key.seal(text, _posted(text), VALUE, at)

    async def tag_key(self, name: str, value: str) -> str:
        """Return a keyed hash of a tag's name and value."""
        return (await self._key("")).content_key(json.dumps(["tag", name, value]))

    def workspace_of(self, identity: int | None) -> str:
        """Return the workspace of an event that this process has claimed, or of the event whose handler runs."""
        found = None if identity is None else self._events.get(identity)
        event = None if found is None else found()
        return (CURRENT.get() if event is None else event.workspace) or ""

    # --- Decrypting

    async def open_events(self, events: Sequence[Event], *, required: bool = False) -> None:
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
        if required:
            await self._require(events)

    def _prune(self) -> None:
        """Forget the events that are gone, once half of them may be. A WeakValueDictionary costs several times more."""
        if len(self._events) > self._prune_at:
            self._events = {
                identity: event for identity, event in self._events.items() if event() is not None
            }
            self._prune_at = _FEW + 2 * len(self._events)

    def enter(self, events: Sequence[Event]) -> Awaitable[None] | None:
        if self.on or any(event.workspace is not None or SEALED in event.body for event in events):
            return self._enter(events)
        CURRENT.set(None)
        return None

    async def _enter(self, events: Sequence[Event]) -> None:
        await self._require(events)
        CURRENT.set(events[0].workspace)

    async def _require(self, events: Sequence[Event]) -> None:
        """Decrypt the events that still are encrypted, and make sure that their results can be encrypted."""
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
            for value, purpose, at in _sealed_in(event.payload):
                await self._text(value, purpose, at)  # says why

    async def open(self, text: str, at: Location | None = None) -> str:
        if SEALED not in text:
            return text
        value = json.loads(text)
        if is_sealed(value):
            opened = await self._text(value, None if at is None else VALUE, at)
            # The text itself: reading and writing it would change some numbers.
            return json.dumps(_with_added(json.loads(opened), value)) if _is_added_to(value) else opened
        for name, inner in sealed_fields(value):
            value = {**value, name: json.loads(await self._text(inner, VALUE, at))}
        return json.dumps(value)

    async def _text(self, value: Mapping[str, Any], purpose: bytes | None, at: Location | None = None) -> str:
        raw = decoded(value[SEALED])
        identity = key_id_of(raw)
        key = (await self._data_keys.by_ids([identity])).get(identity)
        if key is None:
            raise await self._data_keys.why_missing(identity)
        if purpose is not None:
            return key.open(raw, purpose, at)
        try:
            return key.open(raw)
        except DamagedError:
            return key.open(raw, EVENT)


def codec_for(keys: Keyring, database: Pool | Connection, *, on: bool) -> Sealing:
    """Return what encrypts with the keys of a service. It looks up data keys outside of transactions."""
    return Sealing(DataKeys(database, keys), on=on)


def _posted(text: str) -> str:
    """Return where a stored question was posted, and by whose installation, as JSON text: SQL reads it."""
    if '"ts"' not in text or '"channel"' not in text:
        return NOTHING
    clear = clear_part(json.loads(text))
    names = ("channel", "ts", "thread_ts", "team_id", "enterprise_id")
    return json.dumps({name: clear[name] for name in names if name in clear})


def _sealed_in(payload: object) -> Iterator[tuple[dict[str, Any], bytes, Location | None]]:
    """Yield the sealed values of a payload, itself or those of its fields, with their purpose and location."""
    if isinstance(payload, dict) and SEALED in payload:
        yield payload, EVENT, None
    else:
        yield from ((value, VALUE, _location_in(name)) for name, value in sealed_fields(payload))


def _location_in(name: str) -> Location | None:
    """Return the location of a payload's field: in ``value``, the database gives a job a question of any event."""
    return None if name == "value" else Location(None, name)


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
            opened = {**opened, name: json.loads(key.open(raw, VALUE, _location_in(name)))}
            workspace = key.workspace
    except (DamagedError, KeyError):
        return
    if workspace is not None:
        event.body, event.workspace = json.dumps(opened), workspace


def _is_added_to(stored: Mapping[str, Any]) -> bool:
    return any(name in stored for name in _ADDED)


def _with_added(opened: Any, stored: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """Return a decrypted payload with what SQL added beside the encrypted one."""
    added = {name: stored[name] for name in _ADDED if name in stored}
    return {**opened, **added} if added and isinstance(opened, dict) else opened

"""Encrypt what people wrote before it is stored, and decrypt what is read: payloads, results, steps, errors, signals.

It happens in the services. The database, its log and its dumps never have the text. See ADR 0071.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from surelane.calls import Connection, Pool
from surelane.errors import DatabaseUnavailable, SurelaneError, TransientConflict
from surelane.events import Event
from surelane.json_text import json_text
from surelane_service.data_keys import DataKeys, NoKeyError
from surelane_service.envelopes import (
    SEALED,
    WORKSPACE,
    DamagedError,
    DataKey,
    clear_part,
    is_sealed,
    key_id_of,
    sealed_fields,
    workspace_of,
)
from surelane_service.keys import Keyring, SealedError

_CONTENT = "content"
"""The field of an error record that holds the sealed rest of it."""
ENCRYPTED = "encrypted"
"""What stands in the clear in place of an error's message, or of a reason in free words."""
_ERROR_FIELDS = ("message", "traceback")
_WORD = re.compile(r"[a-z_]{1,60}")
"""A reason that a program gave. It stays in the clear."""

CURRENT: ContextVar[str | None] = ContextVar("workspace", default=None)
"""The workspace of the event whose handler runs. Jobs of the handler without a workspace are encrypted with its key."""


class Sealing:
    """Encrypts and decrypts JSON values with the workspaces' data keys."""

    def __init__(self, database: Pool | Connection, keys: Keyring | None, *, on: bool) -> None:
        """Make it.

        Args:
            database: where the data keys are.
            keys: open the data keys; ``None``: what is encrypted cannot be read here.
            on: whether new values are encrypted. Stored ones are decrypted in any case.
        """
        self.on = on
        self._data_keys = DataKeys(database, keys)
        self._events: WeakValueDictionary[int, Event] = WeakValueDictionary()

    # --- Encrypting

    async def key_for(self, workspace: str) -> DataKey:
        """Return the key that encrypts the values of a workspace."""
        return self._data_keys.kept(workspace) or await self._data_keys.current(workspace)

    async def event(
        self, text: str, key: str | None, payload: Mapping[str, Any] | None = None
    ) -> tuple[str, str | None]:
        """Encrypt an event of Slack's, JSON text, whose value is ``payload``. Return it with its natural key.

        A natural key that follows from its whole content is replaced: others could guess the content by it.
        """
        payload = json.loads(text) if payload is None else payload
        data_key = await self.key_for(workspace_of(payload))
        if key is None and not (payload.get("event_id") or payload.get("trigger_id")):
            key = data_key.content_key(text)
        return data_key.seal(text, _clear(payload, data_key)), key

    async def payload(self, value: Any, workspace: str | None = None) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
        """Encrypt a job's payload.

        Args:
            value: the payload: a JSON value, a pydantic model or a dataclass.
            workspace: whose key to use where it names no workspace; by default that of the event that is handled.
        """
        fallback = CURRENT.get() if workspace is None else workspace
        text = json_text(value)
        plain = json.loads(text)  # the payload may be a model
        data_key = await self.key_for(workspace_of(plain) or fallback or "")
        sealed: dict[str, Any] = json.loads(data_key.seal(text, _clear(plain, data_key)))
        return sealed

    async def value(self, text: str, workspace: str | None = None) -> str:
        """Encrypt another value of an event, JSON text: a result, a step, a signal."""
        workspace = CURRENT.get() if workspace is None else workspace
        data_key = await self.key_for(workspace or "")
        return data_key.seal(text, _place(text))

    async def errors(self, records: Sequence[dict[str, Any]], workspace: str) -> list[dict[str, Any]]:
        """Encrypt the messages and tracebacks of error records."""
        data_key = await self.key_for(workspace)
        return [_sealed_error(record, data_key) for record in records]

    @staticmethod
    def reason(given: str | None) -> str | None:
        """Return a reason for history: a program's word as it is, and free words not."""
        return given if given is None or _WORD.fullmatch(given) else ENCRYPTED

    def workspace_of(self, identity: int) -> str:
        """Return the workspace of an event that this process has claimed, by its id."""
        event = self._events.get(identity)
        return "" if event is None else event.workspace or ""

    # --- Decrypting

    async def open_events(self, events: Sequence[Event]) -> None:
        """Decrypt the events that can be. The others stay as they are; :meth:`enter` says why."""
        sealed = [event for event in events if _may_be_sealed(event)]
        if sealed:
            try:
                keys = await self._data_keys.by_ids(_key_ids([event.payload for event in sealed]))
            except SurelaneError:
                keys = {}
            for event in sealed:
                _open_event(event, keys)
        if self.on:
            for event in events:
                if event.workspace is None and not _may_be_sealed(event):
                    event.workspace = workspace_of(event.payload)
                self._events[event.id] = event

    async def enter(self, events: Sequence[Event]) -> None:
        """Do as :meth:`require`, for a handler. From here on, jobs that name no workspace are of the first event's."""
        await self.require(events)
        CURRENT.set(events[0].workspace)

    async def require(self, events: Sequence[Event]) -> None:
        """Decrypt the events that still are encrypted, and make sure that their results can be encrypted.

        Raises:
            SealedError: one cannot be decrypted, or its results could not be encrypted; it says why.
        """
        try:
            for event in events:
                if _may_be_sealed(event):
                    await self.open_events([event])
                if _may_be_sealed(event):
                    for value in _sealed_in(event.payload):
                        await self._opened(value)  # says why
                if self.on:
                    await self.key_for(event.workspace or "")
        except (DatabaseUnavailable, TransientConflict) as error:
            raise NoKeyError(f"its data key could not be read: {type(error).__name__}") from error

    async def opened(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Decrypt a stored JSON value, or the sealed value in one of its fields.

        Raises:
            SealedError: it cannot be decrypted; it says why.
        """
        if is_sealed(value):
            return await self._opened(value)
        for name, inner in sealed_fields(value):
            value = {**value, name: await self._opened(inner)}
        return value

    async def text(self, stored: str) -> str:
        """Decrypt a stored value, as JSON text.

        Raises:
            SealedError: it cannot be decrypted; it says why.
        """
        if SEALED not in stored:
            return stored
        value = json.loads(stored)
        # The text itself: reading and writing it would change some numbers.
        return await self._text(value) if is_sealed(value) else json.dumps(await self.opened(value))

    async def shown(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Decrypt a stored value for people; where that is impossible, say why in its place."""
        try:
            return await self.opened(value)
        except SealedError as error:
            if is_sealed(value):
                return {**value, SEALED: f"cannot be decrypted: {error}"}
            return {**value, **{name: await self.shown(inner) for name, inner in sealed_fields(value)}}

    async def shown_errors(self, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Decrypt error records for people."""
        shown: list[dict[str, Any]] = []
        for record in records:
            content = record.get(_CONTENT)
            if is_sealed(content):
                opened = await self.shown(content)
                rest = {"message": opened[SEALED]} if SEALED in opened else opened
                clear = {name: part for name, part in record.items() if name != _CONTENT}
                shown.append(clear | rest)
            else:
                shown.append(dict(record))
        return shown

    async def _opened(self, value: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
        return json.loads(await self._text(value))

    async def _text(self, value: Mapping[str, Any]) -> str:
        identity = key_id_of(value)
        key = (await self._data_keys.by_ids([identity])).get(identity)
        if key is None:
            raise await self._data_keys.why_missing(identity)
        return key.open(value)


def _clear(payload: object, key: DataKey) -> dict[str, Any]:
    """Return what stays in the clear of a payload: also its workspace, where it does not name it itself."""
    clear = clear_part(payload)
    return {**clear, WORKSPACE: key.workspace} if key.workspace != workspace_of(clear) else clear


def _place(text: str) -> dict[str, Any]:
    """Return what operators' lists show of a stored question: where it was posted."""
    if '"ts"' not in text or '"channel"' not in text:
        return {}
    clear = clear_part(json.loads(text))
    return {name: clear[name] for name in ("channel", "ts", "thread_ts") if name in clear}


def _sealed_error(record: dict[str, Any], key: DataKey) -> dict[str, Any]:
    content = {name: record[name] for name in _ERROR_FIELDS if name in record}
    rest = {name: part for name, part in record.items() if name not in _ERROR_FIELDS}
    return {**rest, "message": ENCRYPTED, _CONTENT: json.loads(key.seal(json.dumps(content), {}))}


def _sealed_in(payload: object) -> Iterator[dict[str, Any]]:
    """Yield the sealed values of a payload: itself, or those of its fields."""
    if isinstance(payload, dict) and SEALED in payload:
        yield payload
    else:
        yield from (value for _, value in sealed_fields(payload))


def _key_ids(payloads: Sequence[object]) -> set[bytes]:
    ids: set[bytes] = set()
    for value in (value for payload in payloads for value in _sealed_in(payload)):
        try:
            ids.add(key_id_of(value))
        except DamagedError:
            continue
    return ids


def _may_be_sealed(event: Event) -> bool:
    """Return whether an event still is to be decrypted. Its text may also quote the field's name."""
    return event.workspace is None and SEALED in event.body and any(True for _ in _sealed_in(event.payload))


def _open_event(event: Event, keys: Mapping[bytes, DataKey]) -> None:
    """Put the decrypted payload in its place, if a key opens it."""
    payload: Any = event.payload
    try:
        if is_sealed(payload):
            key = keys[key_id_of(payload)]
            event.body, event.workspace = key.open(payload), key.workspace
        else:
            opened = dict(payload)
            for name, value in sealed_fields(payload):
                key = keys[key_id_of(value)]
                opened[name] = json.loads(key.open(value))
                event.workspace = key.workspace
            event.body = json.dumps(opened)
    except (DamagedError, KeyError):
        return
    del event.payload  # it is parsed anew

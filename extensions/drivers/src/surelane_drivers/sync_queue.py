"""The queue for synchronous programs: :class:`SyncQueue`."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from surelane import Queue, UnsupportedConnection
from surelane.codec import Codec
from surelane.drivers import sync_driver

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    import sqlalchemy.orm
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.utils.connection import ConnectionProxy

    SyncDatabase: TypeAlias = (
        psycopg.Connection[Any]
        | sqlalchemy.Connection
        | sqlalchemy.orm.Session
        | sqlalchemy.orm.scoped_session[Any]
        | BaseDatabaseWrapper
        | ConnectionProxy
    )

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
_NOT_SYNC = "SyncQueue cannot wait: give Encryption a function that returns a synchronous connection"


class _Blocking(Queue):
    """A queue whose coroutines never suspend, because its driver blocks."""

    _driver_of = staticmethod(sync_driver)


def _blocking(
    method: Callable[Concatenate[Queue, Parameters], Coroutine[Any, Any, Answer]],
) -> "Callable[Concatenate[SyncQueue, Parameters], Answer]":
    """Return a method that runs one of :class:`Queue`'s to its end."""

    @wraps(method)
    def call(self: "SyncQueue", /, *arguments: Parameters.args, **named: Parameters.kwargs) -> Answer:
        try:
            method(self._queue, *arguments, **named).send(None)
        except StopIteration as ended:
            answer: Answer = ended.value
            return answer
        raise UnsupportedConnection(_NOT_SYNC)

    return call


class SyncQueue:
    """Put jobs into the queue from a synchronous program. The methods are those of :class:`Queue`; they block.

    Calls join the transaction of the caller's connection or session.
    """

    def __init__(self, database: "SyncDatabase", encryption: Codec | None = None) -> None:
        """Use a connection.

        Args:
            database: a psycopg ``Connection``, a ``Connection`` or ``Session`` of SQLAlchemy over psycopg, or Django's
                ``connection``.
            encryption: seals what is stored. The ``database`` of an ``Encryption`` is a function that returns a
                synchronous connection.

        Raises:
            UnsupportedConnection: one of them is something else.
        """
        if getattr(encryption, "asynchronous", False):
            raise UnsupportedConnection(_NOT_SYNC)
        self._queue = _Blocking(database, encryption=encryption)  # type: ignore[arg-type]  # its driver takes these

    insert_event = _blocking(Queue.insert_event)
    enqueue = _blocking(Queue.enqueue)
    enqueue_many = _blocking(Queue.enqueue_many)
    cancel = _blocking(Queue.cancel)
    signal = _blocking(Queue.signal)
    signal_id = _blocking(Queue.signal_id)
    reschedule = _blocking(Queue.reschedule)
    fan_out = _blocking(Queue.fan_out)
    children = _blocking(Queue.children)
    answer_event = _blocking(Queue.answer_event)

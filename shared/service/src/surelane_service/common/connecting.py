"""Every connection of ours: what ``DATABASE_URL`` says, as libpq reads it, and the settings that our SQL relies on."""

import asyncio
import configparser
import ipaddress
import os
import random
import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import asyncpg

from .secret_files import SecretFileError, read_secrets

if TYPE_CHECKING:  # generic for the type checker alone
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

TRACKED = {"standard_conforming_strings": "on", "DateStyle": "ISO, MDY", "TimeZone": "UTC"}
"""What a session has that PgBouncer keeps for each of its clients, on each of its connections."""
SESSION = TRACKED | {
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "search_path": "pg_catalog, pg_temp",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "quote_all_identifiers": "off",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
}
"""What our SQL relies on: each connection of ours sets it, over what the database or the role has.

With ``row_security`` off, a statement that a policy would narrow fails, where it would not see rows. Not in the list:
``default_transaction_read_only``, which platforms switch on when a disk is full; the ends of idle sessions, after which
services connect again; and ``transaction_timeout``, which servers before PostgreSQL 17 do not know (:func:`connect`).
"""
RELIED_ON = ("default_transaction_isolation", "standard_conforming_strings")
"""What a transaction pooler must bring along: no statement can set it there for itself."""

_VIEWS = "restrict_nonsystem_relation_kind"
_WITH_VIEWS = f"select set_config('{_VIEWS}', '', false) where current_setting('{_VIEWS}', true) <> ''"

HEAD_START = 0.1
"""The part of the time to connect that a host of a URI has to itself before the next one is tried beside it."""
FAILED = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError)
"""All that asyncpg raises when it cannot connect."""

_URI = re.compile(r"postgres(?:ql)?://(?:([^@/]*)@)?([^/?]*)(?:/([^?]*))?(?:\?(.*))?", re.DOTALL)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:@#]*)(?::(\d*))?")
_MALFORMED = (
    "DATABASE_URL is not a PostgreSQL URI: write postgresql://user:password@host:5432/database, "
    "special characters in the password as %XX"
)
UNVERIFIED = (
    "somebody on the way may read along, or answer in its place: write sslmode=verify-full, "
    "and sslrootcert=system or the file of your authority"
)
"""What to do about a host that :func:`unverified` returns."""
_DRIVER = ("user", "password", "database", "passfile", "krbsrvname", "gsslib")
"""Parameters that the driver takes by name."""
_TLS = ("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword")
_TLS_VERSIONS = ("ssl_min_protocol_version", "ssl_max_protocol_version")
"""Parameters that the driver takes in a URI alone."""
_KEEPALIVES = {
    "keepalives_idle": "TCP_KEEPIDLE",
    "keepalives_interval": "TCP_KEEPINTVL",
    "keepalives_count": "TCP_KEEPCNT",
    "tcp_user_timeout": "TCP_USER_TIMEOUT",
}
_WITHOUT = "leave it out"
_VERIFIED = "write {}={}, and sslmode=verify-full with sslrootcert=system, so that no other server can answer"
_LIMITED: Mapping[str, tuple[str, str]] = {
    "channel_binding": ("prefer|disable", _VERIFIED.format("channel_binding", "prefer")),
    "require_auth": (
        r"(?=.*\bnone\b)(?=.*\bmd5\b)(?=.*\bpassword\b)(?=.*\bscram-sha-256\b)[^!]*|!(gss|sspi)(,!(gss|sspi))?",
        f"{_WITHOUT}; sslmode=verify-full with sslrootcert=system makes sure that no other server can answer",
    ),
    "gssencmode": ("disable|prefer", "write gssencmode=disable, and sslmode=require"),
    "client_encoding": ("(?i:utf-?8|auto|unicode)", "Surelane speaks UTF8 alone: leave it out"),
    "target_session_attrs": (
        "any|read-write|primary",
        "services write, and look for the primary: leave it out",
    ),
    "load_balance_hosts": ("disable|random", "write disable or random"),
    "sslnegotiation": ("postgres|direct", "write postgres or direct"),
    "sslcompression": ("0|1", _WITHOUT),
    "sslcertmode": ("allow", "leave it out; without sslcert none is sent"),
    "sslsni": ("1", _WITHOUT),
    "gssdelegation": ("0", _WITHOUT),
    "replication": ("0|false|off|no", _WITHOUT),
    "min_protocol_version": (r"3\.0", _WITHOUT),
    "max_protocol_version": (r"3\.0|3\.2|latest", _WITHOUT),
}
"""Parameters that are carried out with some values only: a pattern for these, and what to do with others."""
_REFUSED: Mapping[str, str] = {
    "pgbouncer": "leave it out; workers behind a transaction pooler need SURELANE_NOTIFICATIONS=off",
    **dict.fromkeys(("schema", "currentSchema"), "leave it out: Surelane's schema is always agent"),
    **dict.fromkeys(("oauth_issuer", "oauth_client_id"), "log in by password or certificate"),
}
"""What to write in place of others that people copy."""
_CARRIED = {
    *("host", "hostaddr", "port", "dbname", "service", "servicefile", "ssl", "options", "keepalives"),
    *("connect_timeout", "application_name", "fallback_application_name"),
    *(*_DRIVER, *_TLS, *_TLS_VERSIONS, *_KEEPALIVES, *_LIMITED),
}


class DatabaseUriError(ValueError):
    """``DATABASE_URL`` cannot be used. The message says why and what to do, and has no part of a password."""


class UnfitSettingError(asyncpg.InterfaceError):
    """A pooler hands out sessions with a setting that our SQL cannot work with."""


@dataclass(frozen=True)
class Address:
    """What a URI says.

    Attributes:
        hosts: the names, addresses or sockets' directories to try, each with its port; ``None`` for the default.
        driver: arguments of asyncpg's ``connect``, the URI of its TLS parameters among them.
        settings: of the session.
        connect_timeout: the most seconds that it takes to connect to one host.
        sockets: options of TCP connections, by their names in :mod:`socket`.
    """

    hosts: tuple[tuple[str | None, int | None], ...]
    driver: dict[str, Any]
    settings: dict[str, str]
    connect_timeout: float | None = None
    sockets: dict[str, int] = field(default_factory=dict)


def parse(uri: str) -> Address:
    """Read a URI as libpq does. ``DatabaseUriError``: it is malformed, or has a parameter that is not carried out."""
    given = _parameters(uri)
    service = given.get("service") or os.environ.get("PGSERVICE")
    if service:
        given = _of_service(service, given.get("servicefile")) | given
    try:
        if not given.get("password") and (secret := read_secrets(["PGPASSWORD"])):
            given["password"] = secret["PGPASSWORD"]
    except SecretFileError as error:
        raise DatabaseUriError(str(error)) from None
    for name, value in given.items():
        _check(name, value)
    if given.pop("ssl", None) not in (None, "true"):
        raise DatabaseUriError(
            "DATABASE_URL: ssl takes true alone; write sslmode=require, or sslmode=disable"
        )
    return Address(
        _hosts(given),
        {name: given[name] for name in _DRIVER if given.get(name)} | _tls(given),
        {name: given[name] for name in ("application_name", "options") if given.get(name)},
        float(_number(given, "connect_timeout") or 0) or None,
        _sockets(given),
    )


def unverified(uri: str) -> str | None:
    """Return a host of a URI that proves by no certificate that it is the database, or ``None``.

    A socket, this machine and a name without a dot, which is one of this container's network, need not prove it.
    """
    address = parse(uri)
    said = dict(parse_qsl(urlsplit(address.driver.get("dsn", "")).query)).get("sslmode")
    if "ssl" in address.driver or (said or os.environ.get("PGSSLMODE")) == "verify-full":
        return None
    names = (name or host for name, _ in address.hosts for host in os.environ.get("PGHOST", "").split(","))
    return next((name for name in names if not _is_near(name)), None)


def _is_near(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.startswith(("/", "@")) or "." not in host.removesuffix(".") or host.endswith(".localhost")


def _parameters(uri: str) -> dict[str, str]:
    """Return all that a URI says, by libpq's names. A later one counts."""
    found = _URI.fullmatch(uri.strip())
    if found is None or re.search(r"%(?![0-9A-Fa-f]{2})|%00", uri):
        raise DatabaseUriError(_MALFORMED)
    login, hosts, database, query = (part or "" for part in found.groups())
    user, _, password = login.partition(":")
    parts = [_HOST.fullmatch(each) for each in hosts.split(",")]
    if None in parts:
        raise DatabaseUriError(_MALFORMED)
    names, ports = zip(*(part.groups("") for part in parts if part), strict=True)
    given = {"user": user, "password": password, "database": database}
    given |= {"host": ",".join(name.strip("[]") for name in names), "port": ",".join(ports)}
    given = {name: unquote(value) for name, value in given.items() if value.strip(",")}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        given[{"dbname": "database"}.get(name, unquote(name))] = unquote(value)
    if given.get("ssl") == "true":
        given.setdefault("sslmode", "require")
    return given


def _of_service(service: str, path: str | None) -> dict[str, str]:
    """Return the parameters of a section of the service file."""
    at = path or os.environ.get("PGSERVICEFILE") or Path("~/.pg_service.conf").expanduser()
    file = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    with suppress(configparser.Error, UnicodeDecodeError):
        file.read(at, encoding="utf-8")
    if not file.has_section(service):
        raise DatabaseUriError(
            f"DATABASE_URL: {at} has no service {service}; correct the name, or set PGSERVICEFILE"
        )
    return {{"dbname": "database"}.get(name, name): value for name, value in file.items(service)}


def _check(name: str, value: str) -> None:
    """Refuse a parameter that would not be carried out."""
    advice = _REFUSED.get(name)
    if name in _LIMITED and not re.fullmatch(_LIMITED[name][0], value):
        advice = _LIMITED[name][1]
        name = f"{name}={value}"
    elif name not in _CARRIED and advice is None:
        advice = f"leave it out; a setting of the server is options=-c%20{name}%3D…"
    if advice:
        raise DatabaseUriError(f"DATABASE_URL: {name} is not supported: {advice}")


def _hosts(given: Mapping[str, str]) -> tuple[tuple[str | None, int | None], ...]:
    names = given.get("hostaddr", given.get("host", "")).split(",")
    if given.get("hostaddr") and given.get("sslmode") == "verify-full":
        raise DatabaseUriError(
            "DATABASE_URL: hostaddr is not supported with sslmode=verify-full, which checks the name: leave it out"
        )
    ports = given.get("port", "").split(",")
    if len(ports) not in (1, len(names)) or not all(port == "" or port.isdigit() for port in ports):
        raise DatabaseUriError("DATABASE_URL: port takes one number, or one for each host")
    every = ports * len(names) if len(ports) == 1 else ports
    hosts = [(name or None, int(port) if port else None) for name, port in zip_longest(names, every)]
    if given.get("load_balance_hosts") == "random":
        random.shuffle(hosts)
    return tuple(hosts)


def _tls(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the driver's arguments for TLS."""
    wanted = {name: given[name] for name in (*_TLS, *_TLS_VERSIONS) if given.get(name)}
    found: dict[str, Any] = {"direct_tls": True} if given.get("sslnegotiation") == "direct" else {}
    if wanted.get("sslrootcert") == "system":
        if wanted.get("sslmode", "verify-full") != "verify-full":
            raise DatabaseUriError("DATABASE_URL: sslrootcert=system needs sslmode=verify-full")
        found["ssl"] = ssl.create_default_context()
        if "sslcert" in wanted:
            found["ssl"].load_cert_chain(
                wanted["sslcert"], wanted.get("sslkey"), partial(wanted.get, "sslpassword", "")
            )
        return found
    return found | {
        "dsn": f"postgresql://?{urlencode(wanted, quote_via=quote)}" if wanted else "postgresql://"
    }


def _sockets(given: Mapping[str, str]) -> dict[str, int]:
    if given.get("keepalives") == "0":
        return {}
    options = {constant: _number(given, name) for name, constant in _KEEPALIVES.items()}
    found = {constant: value for constant, value in options.items() if value}
    return {"SO_KEEPALIVE": 1, **found} if found or _number(given, "keepalives") else {}


def _number(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name, "").strip()
    if value and not re.fullmatch(r"-?\d{1,9}", value):
        raise DatabaseUriError(f"DATABASE_URL: {name} is no number")
    return max(int(value), 0) if value else None


async def connect(
    uri: str,
    *,
    timeout: float,
    settings: dict[str, str],
    pooled: bool = False,
    primary: bool = False,
    **options: Any,  # noqa: ANN401 - of asyncpg.connect
) -> Connection:
    """Connect to a host of a URI, the primary among several. One that does not answer holds up the next only shortly.

    Args:
        uri: any libpq URI.
        timeout: the most seconds that it may take.
        settings: of the session, beside :data:`SESSION`.
        pooled: a transaction pooler is known to be between: it takes :data:`TRACKED` alone.
        primary: refuse a standby, also if there is one host.

    Raises:
        DatabaseUriError: the URI cannot be used.
        UnfitSettingError: a pooler is between, and its sessions have settings that our SQL cannot work with.
    """
    address = parse(uri)
    if primary or len(address.hosts) > 1:
        options["target_session_attrs"] = "primary"
    tried: list[asyncio.Task[Connection]] = []

    async def attempt(nth: int, host: tuple[str | None, int | None]) -> Connection:
        late = nth * HEAD_START * timeout
        if nth:
            await asyncio.wait(tried[nth - 1 : nth], timeout=late)
        within = min(timeout - late, address.connect_timeout or timeout)
        async with asyncio.timeout(within):
            return await _open(address, host, settings, pooled, options | {"timeout": within})

    tried += [asyncio.create_task(attempt(*each)) for each in enumerate(address.hosts)]
    chosen: Connection | None = None
    try:
        for ended in asyncio.as_completed(tried):
            with suppress(*FAILED):
                return (chosen := await ended)
        return await tried[0]  # raises why
    finally:
        for each in tried:
            if not each.cancel() and not each.exception() and each.result() is not chosen:
                each.result().terminate()


async def _open(
    address: Address,
    host: tuple[str | None, int | None],
    settings: dict[str, str],
    pooled: bool,
    options: dict[str, Any],
) -> Connection:
    """Open a connection. A pooler that refuses the session's settings gets those that it tracks, and is checked."""
    given = {"dsn": "postgresql://"} | address.driver | options
    given |= {name: value for name, value in zip(("host", "port"), host, strict=True) if value is not None}
    if address.sockets:
        given["connection_class"] = _with_options(address.sockets)
    dsn = given.pop("dsn")
    try:
        named = TRACKED if pooled else SESSION
        opened: Connection = await asyncpg.connect(
            dsn, server_settings=named | settings | address.settings, **given
        )
    except asyncpg.ProtocolViolationError:
        if pooled:
            raise
        pooled = True
        name = {"application_name": settings["application_name"]} | address.settings
        opened = await asyncpg.connect(dsn, server_settings=TRACKED | name, **given)
    try:
        await (_check_pooled(opened, address) if pooled else _lift(opened))
    except BaseException:
        opened.terminate()
        raise
    return opened


async def _lift(opened: Connection) -> None:
    """Lift what PostgreSQL 17 brought: the bound of transactions, and the refusal of views, meant for dumps."""
    if opened.get_server_version() >= (17,):
        await opened.execute(f"set transaction_timeout = 0; {_WITH_VIEWS}")


async def _check_pooled(opened: Connection, address: Address) -> None:
    """Refuse sessions of a pooler with a setting that our SQL cannot work with."""
    for name in RELIED_ON:
        value = await opened.fetchval("select pg_catalog.current_setting($1)", name)
        if value != SESSION[name]:
            raise UnfitSettingError(
                f"behind this pooler {name} is {value!r}, and no session of it can change that: run as an "
                f"administrator: alter role {address.driver.get('user', 'ROLE')} set {name} = '{SESSION[name]}'; then "
                "let the pooler connect anew"
            )


def _with_options(sockets: Mapping[str, int]) -> type[Connection]:
    """Return a class of connections whose sockets have these options, as far as this system knows them."""

    class Tuned(asyncpg.Connection):  # what asyncpg passes on is its own
        def __init__(self, protocol: Any, transport: Any, *rest: Any) -> None:  # noqa: ANN401
            made = transport.get_extra_info("socket")
            if made.family != getattr(socket, "AF_UNIX", None):
                for name, value in sockets.items():
                    level = socket.SOL_SOCKET if name == "SO_KEEPALIVE" else socket.IPPROTO_TCP
                    if hasattr(socket, name):
                        made.setsockopt(level, getattr(socket, name), value)
            super().__init__(protocol, transport, *rest)

    return Tuned

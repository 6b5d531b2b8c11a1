"""``DATABASE_URL`` is read as libpq reads it; what is not carried out is named. A former primary is not used."""

import re
from collections.abc import Iterator
from unittest.mock import AsyncMock

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from surelane_service import pool
from surelane_service.common.connecting import Address, DatabaseUriError, parse, unverified
from surelane_service.pool import FormerPrimary, refuse_former_primary
from surelane_service.service_settings import warn_of_unverified

AT = "postgresql://u:p@127.0.0.1:5432/db"
CHANGED: dict[str, dict[str, object]] = {
    "connect_timeout=10": {"connect_timeout": 10.0},
    "keepalives=1&keepalives_idle=30": {"sockets": {"SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 30}},
    "keepalives=0&keepalives_idle=30": {"sockets": {}},
    "tcp_user_timeout=20000": {"sockets": {"SO_KEEPALIVE": 1, "TCP_USER_TIMEOUT": 20000}},
    "application_name=mine&fallback_application_name=x": {"settings": {"application_name": "mine"}},
    "options=-c%20geqo%3Doff": {"settings": {"options": "-c geqo=off"}},
    "options=endpoint%3Dep-cool-1+2": {"settings": {"options": "endpoint=ep-cool-1+2"}},
    "host=db1,db2&port=1,2": {"hosts": (("db1", 1), ("db2", 2))},
    "hostaddr=10.0.0.9": {"hosts": (("10.0.0.9", 5432),)},
    "sslmode=allow": {"dsn": "postgresql://?sslmode=allow"},
    "sslnegotiation=direct": {"direct_tls": True},
    "sslmode=verify-ca&sslrootcert=/a+b%26c": {
        "dsn": "postgresql://?sslmode=verify-ca&sslrootcert=%2Fa%2Bb%26c"
    },
    "ssl=true": {"dsn": "postgresql://?sslmode=require"},
    "password=a+b%26c&user=x%40y&dbname=z": {"password": "a+b&c", "user": "x@y", "database": "z"},
    "passfile=/p&krbsrvname=k": {"passfile": "/p", "krbsrvname": "k"},
}
KEPT: dict[str, object] = {"hosts": (("127.0.0.1", 5432),), "settings": {}, "user": "u", "password": "p"}
AS_IT_IS = [
    *("", "channel_binding=prefer", "gssencmode=disable", "client_encoding=UTF8", "target_session_attrs=any"),
    *("sslnegotiation=postgres", "load_balance_hosts=random", "require_auth=scram-sha-256,none,md5,password"),
    *(
        "require_auth=!gss",
        "sslcompression=0",
        "sslsni=1",
        "replication=false",
        "max_protocol_version=latest",
    ),
]
CARRIED: dict[str, dict[str, object]] = {**CHANGED, **dict.fromkeys(AS_IT_IS, KEPT)}
REFUSED = {
    "channel_binding=require": "channel_binding=require is not supported: write channel_binding=prefer, and sslmode",
    "gssencmode=require": "write gssencmode=disable",
    "client_encoding=LATIN1": "Surelane speaks UTF8 alone",
    "target_session_attrs=standby": "services write, and look for the primary",
    "require_auth=scram-sha-256": "sslmode=verify-full",
    "requirepeer=postgres": "requirepeer is not supported",
    "oauth_issuer=x": "log in by password or certificate",
    "pgbouncer=true": "SURELANE_NOTIFICATIONS=off",
    "schema=public": "Surelane's schema is always agent",
    "statement_timeout=5000": "options=-c%20statement_timeout%3D",
    "connection_limit=1": "connection_limit is not supported: leave it out",
    "sslrootcert=system&sslmode=require": "needs sslmode=verify-full",
    "hostaddr=10.0.0.9&sslmode=verify-full": "hostaddr is not supported with sslmode=verify-full",
    "connect_timeout=soon": "connect_timeout is no number",
    "port=1,2": "port takes one number, or one for each host",
    "service=absent&servicefile=/nowhere": "/nowhere has no service absent",
    "password=%zz": "is not a PostgreSQL URI",
}


def shown(address: Address) -> dict[str, object]:
    return {"dsn": None, **vars(address), **address.driver}


@pytest.mark.parametrize("query", CARRIED)
def test_a_parameter_is_carried_out(query: str) -> None:
    found = shown(parse(f"{AT}?{query}"))
    assert {name: found[name] for name in CARRIED[query]} == CARRIED[query]
    assert set(parse(f"{AT}?{query}").settings) <= {"application_name", "options"}


@pytest.mark.parametrize("query", REFUSED)
def test_a_parameter_that_is_not_carried_out_is_named_with_what_to_do(query: str) -> None:
    with pytest.raises(DatabaseUriError, match=re.escape(REFUSED[query])):
        parse(f"{AT}?{query}")


PROVIDERS = {  # what each shows to its users, but for the name of the host
    "alex": ("postgresql://alex:Pw1@{}/neondb?sslmode=require", "ep-cool-1.us-east-2.aws.neon.tech"),
    "neon": (
        "postgresql://neon:Pw1@{}/d?sslmode=require&channel_binding=prefer",
        "ep-1-pooler.aws.neon.tech",
    ),
    "postgres": ("postgresql://postgres:Pw1@{}:5432/postgres", "db.abcd.supabase.co"),
    "postgres.abcd": ("postgres://postgres.abcd:Pw1@{}:6543/postgres", "aws-0-eu-1.pooler.supabase.com"),
    "rds": (
        "postgresql://rds:Pw1@{}/a?sslmode=verify-full&sslrootcert=/c/global-bundle.pem",
        "db.c9.rds.amazonaws.com",
    ),
    "aurora": ("postgresql://aurora:Pw1@{},a.ro-x/app?target_session_attrs=read-write", "a.cluster-x"),
    "app": ("postgresql://app:Pw1@/app?host={}", "/cloudsql/project:europe-west1:instance"),
    "alloydb": ("postgresql://alloydb:Pw1@{}:5432/app?sslmode=require", "10.83.0.2"),
    "app@mine": ("postgres://app%40mine:Pw1@{}/d?sslmode=require", "mine.postgres.database.azure.com"),
    "heroku": ("postgres://heroku:Pw1@{}:5432/d1", "ec2-1-2-3-4.compute-1.amazonaws.com"),
    "fly": ("postgres://fly:Pw1@{}:5432/app?sslmode=disable", "app-db.flycast"),
    "fly-user": ("postgresql://fly-user:Pw1@{}/fly-db", "pgbouncer.abc.flympg.net"),
    "render": ("postgresql://render:Pw1@{}/app", "dpg-abc-a.oregon-postgres.render.com"),
    "tsdbadmin": ("postgres://tsdbadmin:Pw1@{}:34567/tsdb?sslmode=require", "abc.tsdb.cloud.timescale.com"),
    "crunchy": ("postgres://crunchy:Pw1@{}:5432/postgres", "p.vbjrf.db.postgresbridge.com"),
    "ipv6": ("postgresql://ipv6:Pw1@[{}]:5433,[::1]/db", "2001:db8::1"),
}


@pytest.mark.parametrize("user", PROVIDERS)
def test_what_providers_show_is_understood(user: str) -> None:
    uri, host = PROVIDERS[user]
    address = parse(uri.format(host))
    assert (address.hosts[0][0], address.driver["user"], address.driver["password"]) == (host, user, "Pw1")
    assert address.settings == {}


@pytest.mark.parametrize(
    "uri", ["", "mysql://u:secret@h/d", "postgres://u:sec@ret@h/d", "postgres://u@h:secret/d"]
)
def test_a_malformed_uri_is_refused_without_a_part_of_the_password(uri: str) -> None:
    with pytest.raises(DatabaseUriError, match="DATABASE_URL") as refused:
        parse(uri)
    assert not {"secret", "sec", "ret"} & set(re.findall(r"\w+", str(refused.value)))


@pytest.mark.parametrize(
    ("uri", "host"),
    [
        ("postgresql://u@db.example.com/d", "db.example.com"),
        ("postgresql://u@db.example.com/d?sslmode=require", "db.example.com"),
        ("postgresql://u@db.example.com/d?sslmode=verify-ca", "db.example.com"),
        ("postgresql://u@10.0.0.7/d?sslmode=prefer", "10.0.0.7"),
        ("postgresql://u@[fd00::7]/d", "fd00::7"),
        ("postgresql://u@db,db.example.com/d", "db.example.com"),
        ("postgresql://u@/d?hostaddr=10.0.0.7", "10.0.0.7"),
        ("postgresql://u@db.example.com/d?sslmode=verify-full", None),
        ("postgresql://u@db.example.com/d?sslrootcert=system", None),
        ("postgresql://u@db/d", None),
        ("postgresql://u@127.0.0.1,[::1],localhost/d", None),
        ("postgresql://u@/d?host=/run/postgresql", None),
        ("postgresql://u@/d", None),
    ],
)
def test_a_database_elsewhere_that_need_not_prove_itself_is_told(
    uri: str, host: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGSSLMODE"):
        monkeypatch.delenv(name, raising=False)
    assert unverified(uri) == host
    monkeypatch.setenv("PGHOST", "pg.example.com")
    assert unverified(uri) == ("pg.example.com" if uri.endswith("@/d") else host)
    with capture_logs() as lines:
        warn_of_unverified(SecretStr("postgresql://u:pw@db.example.com/d"))
    assert [line["host"] for line in lines] == ["db.example.com"]
    assert "pw" not in str(lines)
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    assert "sslmode=" in uri or unverified(uri) is None


class Timelines(dict[str, int]):
    """A row: asyncpg's are unpacked into their values."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.values())  # type: ignore[arg-type]


def server(timeline: int, newest: int) -> AsyncMock:
    """Return a connection to a server on a timeline, which a worker told of the newest one."""
    row = Timelines(system=7, timeline=timeline, newest=newest)
    return AsyncMock(fetchrow=AsyncMock(return_value=row))


async def test_a_server_is_refused_if_anybody_saw_a_newer_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_seen", (0, 0))
    with pytest.raises(FormerPrimary):
        await refuse_former_primary(server(1, newest=2))
    await refuse_former_primary(server(2, newest=2))
    former = server(1, newest=1)
    with pytest.raises(FormerPrimary):
        await refuse_former_primary(former)
    former.execute.assert_awaited_once_with("select agent.note_timeline($1, $2)", 7, 2)

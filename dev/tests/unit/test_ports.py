"""`surelane dev` takes the ports of its settings, else the defaults, else free ones."""

import socket
from collections.abc import Iterator

import pytest

from surelane.errors import SettingsError
from surelane_dev.ports import Wanted, choose
from tests.processes import free_port

HOST = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_that_is_not_set_moves_when_it_is_taken(taken: int) -> None:
    moved = choose(HOST, {"ingest": Wanted("SURELANE_PORT", None, taken)})["ingest"]
    assert moved not in (0, taken)


def test_a_port_that_is_set_and_taken_is_named(taken: int) -> None:
    with pytest.raises(SettingsError, match=f"SURELANE_PORT: cannot listen on {HOST}:{taken}"):
        choose(HOST, {"ingest": Wanted("SURELANE_PORT", taken, 8080)})


def test_a_default_makes_way_for_a_port_that_is_set() -> None:
    wanted = free_port()
    first, second = Wanted("SURELANE_PORT", None, wanted), Wanted("SURELANE_SIMULATOR_PORT", wanted, 0)
    ports = choose(HOST, {"ingest": first, "simulator": second})
    assert ports["simulator"] == wanted
    assert ports["ingest"] != wanted


def test_zero_means_any_free_port() -> None:
    assert choose(HOST, {"ingest": Wanted("SURELANE_PORT", 0, 8080)})["ingest"] > 0


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(SettingsError, match="SURELANE_PORT"):
        choose("192.0.2.1", {"ingest": Wanted("SURELANE_PORT", 8080, 8080)})

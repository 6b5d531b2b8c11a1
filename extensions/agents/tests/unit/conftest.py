"""Give the tests a database in virtual time."""

from tests.fleet.conftest import virtual_database

__all__ = ["virtual_database"]

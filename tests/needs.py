"""Find programs that some tests need. Without them the tests skip with a reason, or fail if ``CI`` is set."""

import os
import shutil
from typing import NoReturn

import pytest


def lacking(what: str) -> NoReturn:
    """End the test: as failed in CI, which must have everything, else as skipped."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}, and CI must have it", pytrace=False)
    pytest.skip(what)


def program(*names: str) -> str:
    """Return the path of the first of these programs that is installed."""
    for name in names:
        if path := shutil.which(name):
            return path
    lacking(f"{' or '.join(names)} is not installed")

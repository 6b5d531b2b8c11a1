"""What some tests need beside Python. Where it is missing they skip, saying so; where ``CI`` is set they fail."""

import os
import shutil
from typing import NoReturn

import pytest


def lacking(what: str) -> NoReturn:
    """Ends the test: failed in CI, where everything has to be there, else skipped."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}, and CI must have it", pytrace=False)
    pytest.skip(what)


def program(*names: str) -> str:
    """The path of the first of these programs that is installed."""
    for name in names:
        if path := shutil.which(name):
            return path
    lacking(f"{' or '.join(names)} is not installed")

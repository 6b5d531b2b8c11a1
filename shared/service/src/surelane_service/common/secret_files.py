"""Secrets in files: in place of a secret variable ``NAME``, ``NAME_FILE`` may name the file that holds it."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

SUFFIX = "_FILE"
LARGEST = 64 * 1024
"""The most bytes of a secret's file: a larger one is another file."""


class SecretFileError(ValueError):
    """A secret's file cannot be used. The message names the variable and the file, and has no part of the secret."""


def read_secrets(names: Iterable[str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the secrets among ``names`` that are in files, without the line's end behind them.

    Raises:
        SecretFileError: a file is missing, empty, too large or no text, or its variable is given as well.
    """
    return {name: _read(name, environment) for name in names if environment.get(name + SUFFIX)}


def take_secrets(names: Iterable[str]) -> None:
    """Put the secrets that are in files into this process's variables, for code that reads these."""
    for name, secret in read_secrets(names).items():
        os.environ[name] = secret
        del os.environ[name + SUFFIX]


def _read(name: str, environment: Mapping[str, str]) -> str:
    variable, path = name + SUFFIX, Path(environment[name + SUFFIX])
    if environment.get(name):
        raise SecretFileError(f"{name} and {variable} are both set: leave one of them out")
    try:
        if path.exists() and not path.is_file():  # to open a pipe may take forever
            raise SecretFileError(f"{variable}: {path} is no regular file")
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise SecretFileError(f"{variable}: {path} cannot be read: {error.strerror}") from None
    if len(content) > LARGEST:
        raise SecretFileError(f"{variable}: {path} is larger than {LARGEST} bytes: it holds no secret alone")
    try:
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SecretFileError(f"{variable}: {path} is no text in UTF-8") from None
    if not secret.strip() or "\0" in secret:
        raise SecretFileError(f"{variable}: {path} is empty, or has a zero byte")
    return secret

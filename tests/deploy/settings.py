"""List the environment variables of our programs, from their settings classes."""

import re
from collections.abc import Iterator
from types import ModuleType

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

import surelane_ingest.settings
import surelane_migrations.settings
import surelane_worker.settings
from surelane_ingest.settings import IngestSettings
from surelane_operator.console.access.settings import AccessSettings
from surelane_service.settings import SealingSettings, load_settings

LIBPQ = {"PGPASSWORD"}
"""The variables that the database driver reads by itself."""


def _fields(module: ModuleType) -> Iterator[FieldInfo]:
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, BaseSettings):
            yield from kind.model_fields.values()


def _aliases(module: ModuleType) -> Iterator[str]:
    return (str(field.validation_alias) for field in _fields(module))


READ = {
    "ingest": set(_aliases(surelane_ingest.settings)),
    "worker": set(_aliases(surelane_worker.settings)),
    "migrations": set(_aliases(surelane_migrations.settings)),
}
"""The variables of each image's program."""

OPERATORS = {
    str(field.validation_alias)
    for name, field in AccessSettings.model_fields.items()
    if name not in SealingSettings.model_fields
}
"""The variables that ingest's image reads for the operator's API only, a deployment of its own."""

SECRET = {
    image: {
        str(field.validation_alias)
        for field in _fields(module)
        if re.search("Secret|Keyring", str(field.annotation))
    }
    for image, module in (("ingest", surelane_ingest.settings), ("worker", surelane_worker.settings))
}
"""The secret ones among them, by their types."""


def is_read(image: str, variable: str) -> bool:
    """Return whether the image's program uses the variable."""
    return variable in READ[image] | LIBPQ or (image != "migrations" and variable.startswith("OTEL_"))


def default_ports() -> tuple[int, int]:
    """Return ingest's default public and private port."""
    settings = load_settings(IngestSettings, DATABASE_URL="postgresql://", SLACK_SIGNING_SECRET="any")
    return settings.port, settings.private_port

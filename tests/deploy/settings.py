"""List the environment variables of our programs, from their settings classes."""

from collections.abc import Iterator
from types import ModuleType

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

import surelane_agents
import surelane_bolt
import surelane_ingest.ingest_settings
import surelane_migrations.migration_settings
import surelane_operator.console.access.access_settings
import surelane_worker.worker_settings
from surelane_ingest.ingest_settings import IngestSettings
from surelane_service.service_settings import load_settings, variables_of

LIBPQ = {"PGPASSWORD"}
"""The variables that the database driver reads by itself."""


def fields_of(*modules: ModuleType) -> Iterator[FieldInfo]:
    """Return the fields of the modules' settings."""
    for kind in (kind for module in modules for kind in vars(module).values()):
        if isinstance(kind, type) and issubclass(kind, BaseSettings):
            yield from kind.model_fields.values()


MODULES = {
    "ingest": (surelane_ingest.ingest_settings,),
    "worker": (surelane_worker.worker_settings, surelane_agents, surelane_bolt),
    "operator": (surelane_operator.console.access.access_settings,),
    "migrations": (surelane_migrations.migration_settings,),
}
READ = {
    image: {name for field in fields_of(*modules) for name in variables_of(field)}
    for image, modules in MODULES.items()
}
"""The variables of each image's program."""

SECRET = {
    image: {
        list(variables_of(field))[-1] for field in fields_of(*modules) if "Secret" in str(field.annotation)
    }
    for image, modules in MODULES.items()
}
"""The secret ones among them, by their types."""


def is_read(image: str, variable: str) -> bool:
    """Return whether the image's program uses the variable."""
    return variable in READ[image] | LIBPQ or (image != "migrations" and variable.startswith("OTEL_"))


def default_ports() -> tuple[int, int]:
    """Return ingest's default public and private port."""
    settings = load_settings(IngestSettings, DATABASE_URL="postgresql://", SLACK_SIGNING_SECRET="any")
    return settings.port, settings.private_port

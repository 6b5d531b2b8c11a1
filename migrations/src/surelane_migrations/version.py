"""This release, and the oldest compatible one."""

from importlib import metadata

from packaging.version import Version

__all__ = ["MIN_COMPATIBLE", "RELEASE", "Version"]

RELEASE = Version(metadata.version("surelane-migrations"))
"""The version of the schema that this package creates."""

MIN_COMPATIBLE = Version("1.0.0rc1")
"""The oldest release whose services work on this schema. Raise it with a script that breaks older ones."""

"""Parse and compare semantic versions; name this release and the oldest compatible one."""

import re
from dataclasses import dataclass
from functools import total_ordering
from importlib import metadata
from typing import Self

_NUMBER = r"(0|[1-9]\d{0,8})"
_SEMANTIC = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-([0-9a-z]+(?:\.[0-9a-z]+)*))?(?:\+[0-9a-z.-]+)?", re.ASCII
)
_PACKAGED = re.compile(r"(\d+\.\d+\.\d+)(a|b|rc)(\d+)", re.ASCII)
_PRE_RELEASES = {"a": "alpha", "b": "beta", "rc": "rc"}


@total_ordering
@dataclass(frozen=True)
class Version:
    """A semantic version: 0.9.0 comes before 0.10.0, and 1.0.0-rc.1 before 1.0.0."""

    major: int
    minor: int
    patch: int
    pre_release: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``1.2.3``, ``1.2.3-rc.1``, or Python's spelling of the latter, ``1.2.3rc1``.

        Ignore build metadata (``+…``), as semver.org demands.

        Raises:
            ValueError: the text has none of these forms.
        """
        packaged = _PACKAGED.fullmatch(text)
        if packaged:
            text = f"{packaged[1]}-{_PRE_RELEASES[packaged[2]]}.{int(packaged[3])}"
        match = _SEMANTIC.fullmatch(text)
        if not match:
            raise ValueError(f"{text!r} is not a semantic version such as 1.2.3 or 1.2.3-rc.1")
        return cls(
            int(match[1]), int(match[2]), int(match[3]), tuple(match[4].split(".")) if match[4] else ()
        )

    def __str__(self) -> str:
        core = f"{self.major}.{self.minor}.{self.patch}"
        return f"{core}-{'.'.join(self.pre_release)}" if self.pre_release else core

    def __lt__(self, other: "Version") -> bool:
        return self._precedence() < other._precedence()

    def _precedence(self) -> tuple[object, ...]:
        """Return the key of semver.org's order: a pre-release before its release, and numbers before words."""
        identifiers = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in self.pre_release]
        return self.major, self.minor, self.patch, not self.pre_release, identifiers


RELEASE = Version.parse(metadata.version("surelane-migrations"))
"""The version of the schema that this package creates."""

MIN_COMPATIBLE = Version.parse("0.2.0")
"""The oldest release whose services work on this schema. Raise it with a script that breaks older ones."""

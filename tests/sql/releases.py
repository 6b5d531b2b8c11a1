"""The releases before this version, and the digests of their scripts, as ``releases.txt`` records them."""

import hashlib
from collections.abc import Mapping

from surelane_migrations.files import Scripts

COMMITS: Mapping[str, str] = {}
"""Maps versions to commits of their source, oldest first. Add a release's commit together with the next version."""

BASE = "cbbd723da06bad566be550a80501b1241ba6c209"
"""A commit of this version: until a version is released, its schema and client are what today's scripts upgrade."""


def digest_of(scripts: Scripts) -> str:
    """Return SHA-256 of all names and texts. It changes if a script is added, removed, renamed or edited."""
    listing = "".join(f"{script.label} {script.checksum}\n" for script in scripts)
    return hashlib.sha256(listing.encode()).hexdigest()


def parse_releases(text: str) -> Mapping[str, str]:
    """Parse ``releases.txt``: one line per release, with its scripts' digest."""
    return dict(line.split() for line in text.splitlines() if line.strip() and not line.startswith("#"))

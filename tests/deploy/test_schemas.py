"""The manifests are strictly valid (no unknown field) for the oldest and the newest Kubernetes version.

A version between two others refuses nothing that both accept: fields are added, and removed for good.
"""

from pathlib import Path

import kubernetes_validate
import pytest

from tests.deploy.manifests import OBSERVED, PRODUCTION, TEAM, rendered

CUSTOM = {"ScaledObject", "TriggerAuthentication"}
"""Kinds of other operators, for which Kubernetes has no schema."""


@pytest.mark.parametrize("version", ["1.27", "1.37"])
@pytest.mark.parametrize(
    "directory", [OBSERVED, PRODUCTION, TEAM], ids=["demonstration", "production", "team"]
)
def test_manifests_are_valid(version: str, directory: Path) -> None:
    for manifest in rendered(directory):
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, version, strict=True)

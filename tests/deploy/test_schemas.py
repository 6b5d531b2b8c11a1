"""The manifests are valid, strictly (no unknown field), for the Kubernetes versions in use."""

from pathlib import Path

import kubernetes_validate
import pytest

from tests.deploy.manifests import OBSERVED, PRODUCTION, rendered

CUSTOM = {"ScaledObject", "TriggerAuthentication"}
"""Kinds that come with an operator: Kubernetes has no schema for them."""


@pytest.mark.parametrize("version", [f"1.{minor}" for minor in range(27, 38)])
@pytest.mark.parametrize("directory", [OBSERVED, PRODUCTION], ids=["demonstration", "production"])
def test_manifests_are_valid(version: str, directory: Path) -> None:
    for manifest in rendered(directory):
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, version, strict=True)

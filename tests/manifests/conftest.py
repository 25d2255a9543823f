"""The manifests as kustomize renders them, and as they stand in a real API server."""

import subprocess
from pathlib import Path

import pytest
import yaml

from gpu_runbooks.activities.kubernetes.client import Object
from testbed.build import path_of
from testbed.control_plane import ControlPlane

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"


@pytest.fixture(scope="session")
def rendered() -> list[Object]:
    """All objects in the order in which they are applied."""
    command = [str(path_of("kubectl")), "kustomize", str(MANIFESTS)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return list(yaml.safe_load_all(output))


@pytest.fixture(scope="session")
async def applied(control_plane: ControlPlane) -> ControlPlane:
    """A control plane that has the manifests."""
    await control_plane.apply_kustomization(MANIFESTS)
    return control_plane


@pytest.fixture(scope="module")
async def admin(applied):
    async with applied.client() as kubernetes:
        yield kubernetes


@pytest.fixture(scope="module")
async def worker(applied):
    await applied.grant("cluster-worker")
    async with applied.client("cluster-worker") as kubernetes:
        yield kubernetes

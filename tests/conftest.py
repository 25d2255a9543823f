"""Fixtures that many tests share: real parts, started once for all."""

from collections.abc import AsyncIterator

import pytest

from testbed.control_plane import ControlPlane


@pytest.fixture(scope="session")
async def control_plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A Kubernetes control plane for the whole session: tests keep to namespaces and nodes of their own."""
    async with ControlPlane.start(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane

"""One whole testbed for all integration tests; each takes healthy nodes that no test has used."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from testbed.testbed import Testbed

NODES = 48


@pytest.fixture(scope="session")
async def testbed(tmp_path_factory) -> AsyncIterator[Testbed]:
    directory: Path = tmp_path_factory.mktemp("testbed")
    async with Testbed.start(directory, nodes=NODES) as running:
        yield running


@pytest.fixture(scope="session")
def unused_nodes() -> Iterator[str]:
    """Names of nodes in turn. Those with the inference and training pods come first."""
    return iter([f"gpu-{number:02}" for number in range(1, NODES + 1)])


@pytest.fixture
def node(unused_nodes) -> str:
    return next(unused_nodes)

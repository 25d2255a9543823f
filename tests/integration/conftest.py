"""One whole testbed for all integration tests; each takes healthy nodes that no test has used."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from testbed.product import POLICY
from testbed.testbed import Testbed

NODES = 48

SHARED = {
    "max_unavailable: 3": f"max_unavailable: {NODES}",
    "storm: {unhealthy_percent: 90,": f"storm: {{nodes: {NODES}, unhealthy_percent: 100,",
}
"""What tests that share a fleet need of its policy: what one leaves broken must not keep another waiting."""


@pytest.fixture(scope="session")
async def testbed(tmp_path_factory) -> AsyncIterator[Testbed]:
    directory: Path = tmp_path_factory.mktemp("testbed")
    policy = POLICY.read_text()
    for usual, shared in SHARED.items():
        assert policy.count(usual) == 1, f"{POLICY} has no line {usual!r} any more"
        policy = policy.replace(usual, shared)
    file = directory / "shared-policy.yaml"
    file.write_text(policy)
    async with Testbed.start(directory, nodes=NODES, policy=file) as running:
        yield running


@pytest.fixture(scope="session")
def unused_nodes() -> Iterator[str]:
    """Names of nodes in turn. Those with the inference and training pods come first."""
    return iter([f"gpu-{number:02}" for number in range(1, NODES + 1)])


@pytest.fixture
def node(unused_nodes) -> str:
    return next(unused_nodes)

"""Fixtures that many tests share, real parts that each process starts once, and what runs in one process."""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator

import pytest
from incident.wedging import ended_when_wedged
from xdist.scheduler import LoadScopeScheduling

from testbed.control_plane import ControlPlane

LONGEST = "tests/integration/"
"""Begun first: all else runs beside it, where at the end the other processes would wait for it."""

IN_ONE_PROCESS = (
    "tests/cloud/",  # its last test asks what all others called
    "tests/cluster/karpenter/",  # a Karpenter of its own
    LONGEST,  # a testbed of 30 nodes
)
"""Folders whose tests need, or should start only once, what one process has. Elsewhere files are spread."""

PATIENCE = 240.0
"""Seconds for the awaits of one test, which only a failure reaches."""


class ByFileOrFolder(LoadScopeScheduling):
    """Which tests pytest-xdist gives to one process together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((folder for folder in IN_ONE_PROCESS if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log) -> ByFileOrFolder:
    return ByFileOrFolder(config, log)


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Put the longest part first, and let a test that awaits in vain fail where it waits.

    What awaits has real servers behind it, on two cores that all of them share, and one with a defect of its
    own (`incident.wedging`): it gets two more tries, which the summary names. Whoever sees one there looks
    for the race.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
    for item in items:
        if inspect.iscoroutinefunction(item.obj):
            item.obj = with_patience(item.obj)
            item.add_marker(pytest.mark.flaky(reruns=2))


def with_patience(test):
    @functools.wraps(test)
    async def limited(*arguments, **fixtures):
        async with asyncio.timeout(PATIENCE):
            with ended_when_wedged():
                await test(*arguments, **fixtures)

    return limited


@pytest.fixture(scope="session")
async def control_plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A Kubernetes control plane for the whole session: tests keep to namespaces and nodes of their own."""
    async with ControlPlane.start(tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane

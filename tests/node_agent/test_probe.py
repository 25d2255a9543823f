"""A driver that hangs: who asks gets an answer in time, and nothing piles up behind it."""

import asyncio

import pytest

from gpu_runbooks.workers.node_agent.nvml import DriverUnavailable
from gpu_runbooks.workers.node_agent.probe import DriverUnresponsive, Probe
from testbed.gpus import change_node


class Counting:
    """The real session, with a note of how often it was asked."""

    def __init__(self, nvml):
        self._nvml = nvml
        self.asked = 0

    def measure(self):
        self.asked += 1
        return self._nvml.measure()

    def close(self):
        self._nvml.close()


async def answered(probe):
    """The measurement, as soon as the driver answers again."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await probe.measure()
            except DriverUnresponsive:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetRemappedRows"])
async def test_a_hung_call_is_given_up_and_not_joined_by_another(nvml, state, call):
    driver = Counting(nvml)
    probe = Probe(driver, limit=0.2)
    change_node(state, hang=(call,))
    for _ in range(3):
        with pytest.raises(DriverUnresponsive):
            await probe.measure()
    assert driver.asked == 1
    change_node(state, hang=())
    assert len((await answered(probe)).facts.gpus) == 8


async def test_a_hung_driver_does_not_let_go(nvml, state):
    probe = Probe(nvml, limit=0.2)
    change_node(state, hang=("nvmlDeviceGetCount_v2",))
    with pytest.raises(DriverUnresponsive):
        await probe.measure()
    with pytest.raises(DriverUnresponsive):
        async with probe.released():
            pytest.fail("the devices were not let go")
    change_node(state, hang=())
    await answered(probe)


async def test_nobody_measures_while_the_devices_are_let_go(nvml):
    driver = Counting(nvml)
    probe = Probe(driver)
    async with probe.released():
        waiting = asyncio.create_task(probe.measure())
        await asyncio.wait({waiting}, timeout=0.1)
        assert driver.asked == 0
    assert len((await waiting).facts.gpus) == 8


async def test_an_error_of_the_driver_reaches_the_asker(nvml, state):
    change_node(state, init=9)
    with pytest.raises(DriverUnavailable, match="Driver Not Loaded"):
        await Probe(nvml).measure()

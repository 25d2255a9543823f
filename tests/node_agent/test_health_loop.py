"""The Node condition on a real API server: written when it changes, and never healthy without an answer."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from node_agent.cluster import agent_node, condition, until

from gpu_runbooks.activities.names import HEALTHY_CONDITION
from gpu_runbooks.workers.node_agent.health import HealthLoop
from gpu_runbooks.workers.node_agent.probe import Probe
from testbed.gpus import Presence, change_gpu, change_node


@pytest.fixture(scope="module")
async def own(control_plane, admin):
    async with agent_node(control_plane, admin, "health-loop") as node:
        yield node


class CountingProbe(Probe):
    """Tells when the driver was asked so many times."""

    def __init__(self, driver):
        super().__init__(driver)
        self.asked = 0
        self.asked_again = asyncio.Condition()

    async def measure(self):
        async with self.asked_again:
            self.asked += 1
            self.asked_again.notify_all()
        return await super().measure()

    async def wait_for(self, times):
        async with asyncio.timeout(60), self.asked_again:
            await self.asked_again.wait_for(lambda: self.asked >= times)

    async def settle(self):
        """An agent's end takes its call into the driver with it; here the next agent shares the probe."""
        if self._asked is not None:
            await asyncio.wait({asyncio.wrap_future(self._asked)}, timeout=60)


@pytest.fixture
def probe(nvml):
    return CountingProbe(nvml)


@pytest.fixture
def start(control_plane, own, probe, monkeypatch):
    """Starts the health loop of an agent and counts what it writes; it ends with the context."""

    @asynccontextmanager
    async def started():
        writes = []
        async with control_plane.client(own.identity) as kubernetes:
            request = kubernetes.request

            async def noted(method, path, **arguments):
                if method == "PATCH":
                    writes.append(arguments["body"])
                return await request(method, path, **arguments)

            monkeypatch.setattr(kubernetes, "request", noted)
            loop = HealthLoop(kubernetes, node=own.name, probe=probe, interval=0.1)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(loop.run())
                yield writes
                running.cancel()
        await probe.settle()

    return started


@pytest.fixture
def shown(admin, own):
    """The condition, as soon as it has this status and reason."""

    async def wait(status, reason):
        def wanted(node):
            found = condition(node, HEALTHY_CONDITION)
            return (found.get("status"), found.get("reason")) == (status, reason)

        node = await until(admin, "/api/v1/nodes", f"metadata.name={own.name}", wanted)
        assert condition(node, "Ready")["status"] == "True"
        return condition(node, HEALTHY_CONDITION)

    return wait


async def test_the_condition_follows_the_hardware(start, shown, state):
    async with start():
        await shown("True", "GPUsHealthy")
        change_gpu(state, 2, recovery_action=2)
        assert "asks for node reboot" in (await shown("False", "RecoveryAction2Needed"))["message"]
        change_gpu(state, 2, recovery_action=0, presence=Presence.LOST)
        await shown("False", "GPULost")
        change_gpu(state, 2, presence=Presence.MISSING)
        await shown("False", "GPUCountWrong")
        change_gpu(state, 2, presence=Presence.PRESENT)
        await shown("True", "GPUsHealthy")


async def test_a_hung_driver_is_unknown_and_recovers(start, shown, state, probe, monkeypatch):
    monkeypatch.setattr(probe, "_limit", 0.5)
    async with start():
        await shown("True", "GPUsHealthy")
        change_node(state, hang=("nvmlDeviceGetRemappedRows",))
        await shown("Unknown", "DriverUnresponsive")
        change_node(state, hang=())
        await shown("True", "GPUsHealthy")
        change_node(state, init=9)
        # The open session goes on; a lost GPU is what makes the agent open a new one.
        change_gpu(state, 0, presence=Presence.LOST)
        await shown("Unknown", "DriverUnavailable")


async def test_nothing_is_written_while_nothing_changes(start, shown, probe):
    async with start() as writes:
        await shown("True", "GPUsHealthy")
        before, asked = len(writes), probe.asked
        await probe.wait_for(asked + 10)
    assert len(writes) == before


async def test_a_restart_is_no_transition(start, shown, state, admin, own):
    async with start():
        first = await shown("True", "GPUsHealthy")
    early = {**first, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    await admin.request(
        "PATCH",
        f"{own.path}/status",
        body={"status": {"conditions": [early]}},
        content_type="application/strategic-merge-patch+json",
    )
    async with start() as writes:
        await wait_for_write(writes)
    assert writes[0]["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    change_gpu(state, 0, recovery_action=1)
    async with start():
        changed = await shown("False", "RecoveryAction1Needed")
    assert changed["lastTransitionTime"] > "2026-01-01T00:00:00Z"


async def wait_for_write(writes):
    async with asyncio.timeout(60):
        while not writes:
            await asyncio.sleep(0.05)

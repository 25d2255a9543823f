"""Five faults, each with the hardware behind it and the end that it must come to."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from testbed import gpus
from testbed.testbed import Testbed

FAULTY_GPU = 3
"""Index of the GPU that is sick in every scenario."""


async def _needs_reset(testbed: Testbed, node: str) -> None:
    """An uncontained memory error: the driver asks for a reset, and a reset cures it."""
    await testbed.agents.start(node)
    gpus.change_gpu(_state(testbed, node), FAULTY_GPU, recovery_action=1, ecc_uncorrected=2)


async def _reset_does_nothing(testbed: Testbed, node: str) -> None:
    """The GPU's system processor is gone: nvidia-smi says done, NVML shows that nothing changed."""
    await testbed.agents.start(node)
    gpus.change_gpu(_state(testbed, node), FAULTY_GPU, recovery_action=1)
    gpus.change_node(_state(testbed, node), reset=gpus.ResetAnswer.NOTHING)


async def _no_spare_rows(testbed: Testbed, node: str) -> None:
    """A memory bank without spare rows: neither reset nor reboot can bring rows back."""
    await testbed.agents.start(node)
    gpus.change_gpu(_state(testbed, node), FAULTY_GPU, recovery_action=1, remap_failed=1)


async def _healthy(testbed: Testbed, node: str) -> None:
    """Nothing is wrong with the hardware: a program on it read an address that it does not own."""
    await testbed.agents.start(node)
    await testbed.fleet.start_program(node)


async def _dead_agent(testbed: Testbed, node: str) -> None:
    """The same memory error, and nobody on the node to reset the GPU until it boots."""
    await _needs_reset(testbed, node)
    await testbed.agents.kill(node)


@dataclass(frozen=True)
class Scenario:
    """A fault, and what must come of it."""

    name: str
    xid: int
    prepare: Callable[[Testbed, str], Awaitable[None]]
    outcome: str
    """`Outcome` of the incident."""
    acts: tuple[str, ...]
    """Acts of the incident in order, `!` before one without proof."""


SCENARIOS = (
    Scenario(
        "cured by a GPU reset",
        95,
        _needs_reset,
        "returned",
        ("block", "drain", "reset_gpu", "validate", "return"),
    ),
    Scenario(
        "cured by a reboot",
        119,
        _reset_does_nothing,
        "returned",
        ("block", "drain", "!reset_gpu", "drain", "reboot", "validate", "return"),
    ),
    Scenario(
        "needs a replacement",
        64,
        _no_spare_rows,
        "replaced",
        (
            *("block", "drain", "reset_gpu", "!validate", "drain", "reboot", "!validate"),
            *("drain", "replace", "validate", "return"),
        ),
    ),
    Scenario("an application's fault", 31, _healthy, "notified", ("notify_owner",)),
    Scenario(
        "the agent is dead",
        95,
        _dead_agent,
        "returned",
        ("block", "!reset_gpu", "drain", "reboot", "validate", "return"),
    ),
)


async def fire(testbed: Testbed, scenario: Scenario, node: str) -> None:
    """Let Alertmanager report the scenario's fault, as a rule over the node's metrics would."""
    gpu = gpus.read_state(_state(testbed, node)).gpus[FAULTY_GPU]
    await testbed.alertmanager.fire(
        {
            "alertname": "GpuXid",
            "node": node,
            "xid": str(scenario.xid),
            "UUID": gpu.uuid,
            "pci_bus_id": gpu.pci_address,
        },
        {"summary": f"Xid {scenario.xid} on GPU {FAULTY_GPU}: {scenario.name}"},
    )


def _state(testbed: Testbed, node: str) -> Path:
    return testbed.agents.machine(node).gpus

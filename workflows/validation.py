"""The judgement of a node's hardware. Pure, and it fails closed: what nobody measured is not healthy."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_runbooks.activities.model.node import NodeObservation
from gpu_runbooks.activities.model.node_task import GpuFacts, HardwareFacts
from gpu_runbooks.activities.model.plan import ExpectedHardware


@dataclass(frozen=True)
class Check:
    """One comparison, as the audit shows it."""

    name: str
    passed: bool
    seen: str
    wanted: str


def judge_node(seen: NodeObservation, expected: ExpectedHardware) -> tuple[Check, ...]:
    """What Kubernetes says: Ready, and exactly the devices that the instance type has.

    Fewer devices are a fault, and so are more: then the table or the machine is not what we think. A
    capacity that equals a wrong allocatable proves nothing, so neither is compared with the other
    (NVIDIA/k8s-device-plugin#1014).
    """
    # A type without EFA has no such key; on one with EFA a missing key is unknown, not zero.
    efa = 0 if expected.efa_interfaces == 0 and seen.efa_interfaces is None else seen.efa_interfaces
    return (
        _equal("node ready", seen.ready, "True"),
        _equal("allocatable GPUs", seen.gpus, expected.gpus),
        _equal("allocatable EFA interfaces", efa, expected.efa_interfaces),
    )


def judge_hardware(
    facts: HardwareFacts | None, expected: ExpectedHardware, boot_id: str
) -> tuple[Check, ...]:
    """What the node agent measured: counts, and for each GPU recovery action, memory and links."""
    if facts is None:
        return (Check("agent report", passed=False, seen="none", wanted="a complete report"),)
    checks = [
        _equal("boot id", facts.boot_id, boot_id),
        _equal("GPUs in NVML", len(facts.gpus), expected.gpus),
        _equal("EFA devices", facts.efa_interfaces, expected.efa_interfaces),
        _every(facts, "recovery action", lambda gpu: gpu.recovery_action, 0),
        _every(facts, "uncorrected ECC errors", lambda gpu: gpu.ecc_uncorrected, 0),
        _every(facts, "row remap pending", lambda gpu: _remap(gpu, gpu.remap_pending), False),
        _every(facts, "row remap failed", lambda gpu: _remap(gpu, gpu.remap_failed), False),
    ]
    if expected.nvlink:
        checks.append(_every(facts, "NVLinks all active", _all_links_active, True))
    return tuple(checks)


def failures(checks: tuple[Check, ...]) -> str:
    """The checks that failed, in one line; empty when none did."""
    return "; ".join(
        f"{check.name}: {check.seen} instead of {check.wanted}" for check in checks if not check.passed
    )


def untestable(facts: HardwareFacts | None) -> str:
    """Why the test pod cannot say anything of these GPUs, and what a person can do; empty where it can."""
    split = [str(gpu.index) for gpu in facts.gpus if gpu.mig_enabled] if facts else []
    if not split:
        return ""
    return (
        f"MIG is on (GPU {', '.join(split)}): whole GPUs cannot be tested, and the test pod asks for such. "
        "The measurement found nothing wrong. Test the GPUs by hand, then give the node back "
        "(`kubectl uncordon`) and answer `retry`; or switch MIG off, and `retry` validates the node"
    )


def _equal(name: str, seen: object, wanted: object) -> Check:
    return Check(name, passed=seen == wanted, seen=_words(seen), wanted=_words(wanted))


def _every(facts: HardwareFacts, name: str, value: Callable[[GpuFacts], object], wanted: object) -> Check:
    """All GPUs have the wanted value; the first others are named."""
    others = [f"GPU {gpu.index} {_words(value(gpu))}" for gpu in facts.gpus if value(gpu) != wanted]
    passed = bool(facts.gpus) and not others
    seen = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
    return Check(
        name, passed=passed, seen=seen or (_words(wanted) if passed else "no GPU"), wanted=_words(wanted)
    )


def _remap(gpu: GpuFacts, told: bool | None) -> bool | None:
    """No driver tells of remaps while there are MIG instances: the recovery action has to do there."""
    return False if told is None and gpu.mig_enabled else told


def _all_links_active(gpu: GpuFacts) -> bool | None:
    """None where NVML did not say, or knows no link on a type that has NVLink."""
    if not gpu.nvlinks or gpu.nvlinks_active is None:
        return None
    return gpu.nvlinks_active == gpu.nvlinks


def _words(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)

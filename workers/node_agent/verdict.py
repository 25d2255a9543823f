"""Whether a measured node is healthy. Pure: measurement and expectation go in, a verdict comes out."""

from dataclasses import dataclass
from typing import Literal

from gpu_runbooks.activities.model.node_task import GpuFacts
from gpu_runbooks.activities.model.plan import ExpectedHardware
from gpu_runbooks.workers.node_agent.nvml import Measurement

RECOVERY_ACTIONS = {
    0: "none",
    1: "GPU reset",
    2: "node reboot",
    3: "drain P2P",
    4: "drain and reset",
    5: "recover IMEX domain",
    6: "bus reset",
    7: "system reboot",
}
"""NVML field 230, names as in nvidia-ml-py 13.615."""


@dataclass(frozen=True)
class Verdict:
    """The Node condition to be. `Unknown` is never taken for healthy."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def judge(measurement: Measurement, expected: ExpectedHardware | None) -> Verdict:
    """Judge the GPUs. A fault that is certain outweighs a question without an answer.

    Without `expected` nobody knows whether a GPU is missing, so such a node is at best Unknown.
    """
    gpus = measurement.facts.gpus
    lost = set(measurement.lost)
    faults: list[tuple[str, str]] = []
    doubts: list[tuple[str, str]] = []
    if expected is None:
        doubts.append(("InstanceTypeUnknown", "the GPU count of this instance type is not in the table"))
    elif len(gpus) != expected.gpus:
        counts = f"{len(gpus)} GPUs, {expected.gpus} expected of {expected.instance_type}"
        faults.append(("GPUCountWrong", counts))
    for gpu in gpus:
        if gpu.index in lost:
            faults.append(("GPULost", f"{name(gpu)} is lost"))
            continue
        faults += _faults(gpu)
        nvlink = expected is not None and expected.nvlink
        if unanswered := _unanswered(gpu, nvlink=nvlink):
            doubts.append(("GPUUnanswered", f"{name(gpu)} did not answer for {', '.join(unanswered)}"))
    if faults:
        return Verdict("False", _reasons(faults), _sentence(faults))
    if doubts:
        return Verdict("Unknown", doubts[0][0], _sentence(doubts))
    return Verdict("True", "GPUsHealthy", f"{len(gpus)} GPUs answer and ask for nothing")


def name(gpu: GpuFacts) -> str:
    return f"GPU {gpu.index} ({gpu.uuid or gpu.pci_address or 'identity unknown'})"


def recovery_action_name(action: int) -> str:
    return RECOVERY_ACTIONS.get(action, f"action {action}, unknown to this version")


def _faults(gpu: GpuFacts) -> list[tuple[str, str]]:
    faults = []
    if gpu.recovery_action:
        action = recovery_action_name(gpu.recovery_action)
        faults.append((f"RecoveryAction{gpu.recovery_action}Needed", f"{name(gpu)} asks for {action}"))
    if gpu.remap_failed:
        faults.append(("RowRemapFailed", f"{name(gpu)} cannot remap a row or retire a page any more"))
    if gpu.remap_pending:
        faults.append(
            ("RowRemapPending", f"{name(gpu)} has a row remap or a retired page that waits for a reset")
        )
    if gpu.nvlinks is not None and gpu.nvlinks_active is not None and gpu.nvlinks_active < gpu.nvlinks:
        faults.append(("NVLinkDown", f"{name(gpu)} has {gpu.nvlinks_active} of {gpu.nvlinks} NVLinks"))
    return faults


def _unanswered(gpu: GpuFacts, *, nvlink: bool) -> list[str]:
    questions = {
        "uuid": gpu.uuid,
        "recovery action": gpu.recovery_action,
        "uncorrected errors": gpu.ecc_uncorrected,
        # With MIG instances no driver tells these: the recovery action has to do.
        **({} if gpu.mig_enabled else {"pending row remap": gpu.remap_pending}),
        **({} if gpu.mig_enabled else {"failed row remap": gpu.remap_failed}),
        **({"NVLinks": gpu.nvlinks_active} if nvlink else {}),
    }
    return [question for question, answer in questions.items() if answer is None]


def _reasons(faults: list[tuple[str, str]]) -> str:
    """All of them, each once: policy answers to the gravest, which need not be the first."""
    return ",".join(dict.fromkeys(reason for reason, _ in faults))


def _sentence(findings: list[tuple[str, str]]) -> str:
    """At most four findings: a condition's message is for a person, and eight GPUs can say a lot."""
    shown = "; ".join(text for _, text in findings[:4])
    return shown if len(findings) <= 4 else f"{shown}; and {len(findings) - 4} more"

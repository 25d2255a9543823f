"""What shows that a reset took effect. Pure: measurements go in, what is missing comes out."""

from dataclasses import dataclass

from gpu_runbooks.activities.model.node_task import GpuFacts, HardwareFacts
from gpu_runbooks.workers.node_agent.device import FABRIC_STATES, NO_FABRIC, Device
from gpu_runbooks.workers.node_agent.nvml import Measurement
from gpu_runbooks.workers.node_agent.verdict import name, recovery_action_name

COMPLETED = 3


@dataclass(frozen=True)
class Target:
    """What a task names. With neither it is all GPUs of the node."""

    uuid: str | None = None
    pci_address: str | None = None

    def picks(self, gpu: GpuFacts) -> bool:
        if self.uuid is not None:
            return gpu.uuid == self.uuid
        return self.pci_address is None or gpu.pci_address == self.pci_address

    def of(self, measured: Measurement) -> list[tuple[GpuFacts, Device]]:
        """The GPUs that it names."""
        pairs = zip(measured.facts.gpus, measured.devices, strict=True)
        return [(gpu, device) for gpu, device in pairs if self.picks(gpu)]


def shortcomings(target: Target, before: HardwareFacts, after: Measurement, gpus_expected: int) -> list[str]:
    """What is missing from the proof that a reset took effect. Empty: proven as far as NVML can tell.

    A reset clears the recovery action, the pending remap and the volatile error counters, and brings every
    GPU back, into the fabric too. Numbers that are still there, or that nobody gives, are no proof.
    """
    missing = [f"{name(gpu)} is lost" for gpu in after.facts.gpus if gpu.index in after.lost]
    complete = max(gpus_expected, len(before.gpus))
    if len(after.facts.gpus) != complete:
        missing.append(f"{len(after.facts.gpus)} of {complete} GPUs are there")
    present = {gpu.uuid: (gpu, device) for gpu, device in Target().of(after)}
    for old in before.gpus:
        if not target.picks(old):
            continue
        if (found := present.get(old.uuid)) is None:
            missing.append(f"{name(old)} is not there")
        elif found[0].index not in after.lost:
            missing += _remains(*found, old)
    return missing


def gives_sign(target: Target, before: HardwareFacts) -> bool:
    """Whether there was something that only a reset clears, so that its absence afterwards shows a reset."""
    return any(
        gpu.recovery_action or gpu.remap_pending or gpu.ecc_uncorrected
        for gpu in before.gpus
        if target.picks(gpu)
    )


def _remains(gpu: GpuFacts, device: Device, old: GpuFacts) -> list[str]:
    remains = []
    if gpu.recovery_action is None:
        remains.append(f"{name(gpu)} does not say its recovery action")
    elif gpu.recovery_action:
        remains.append(f"{name(gpu)} still asks for {recovery_action_name(gpu.recovery_action)}")
    if gpu.remap_pending is not False:
        remains.append(f"{name(gpu)} still has a pending remap, or does not say")
    if gpu.remap_failed and not old.remap_failed:
        remains.append(f"{name(gpu)} could not remap a memory row")
    if gpu.ecc_uncorrected:
        remains.append(f"{name(gpu)} counts {gpu.ecc_uncorrected} uncorrected errors since the reset")
    elif gpu.ecc_uncorrected is None and old.ecc_uncorrected is not None:
        remains.append(f"{name(gpu)} does not say its uncorrected errors any more")
    if old.nvlinks and not gpu.nvlinks:
        remains.append(f"{name(gpu)} does not tell of its NVLinks any more, it had {old.nvlinks}")
    if gpu.nvlinks and device.fabric not in {NO_FABRIC, COMPLETED}:
        state = "unknown" if device.fabric is None else FABRIC_STATES.get(device.fabric, str(device.fabric))
        remains.append(f"{name(gpu)} is not in the fabric: its state there is {state}")
    return remains

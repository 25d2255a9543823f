"""The GPU reset: find the GPU, prove that nothing holds it, reset, prove that it took effect.

`tasks.py` calls `refusal`, writes down what was measured, then calls `carry_out`. A later start of the agent
that finds this note calls `prove` only.
"""

import asyncio
from dataclasses import dataclass

from gpu_runbooks.activities.model.node_task import GpuFacts, HardwareFacts
from gpu_runbooks.workers.node_agent.nvidia_smi import Outcome, ResetTool, classify
from gpu_runbooks.workers.node_agent.nvml import DriverUnavailable, Measurement
from gpu_runbooks.workers.node_agent.probe import DriverUnresponsive, Probe
from gpu_runbooks.workers.node_agent.verdict import name, recovery_action_name

RESET_LIMIT = 120.0
"""Seconds for nvidia-smi. A reset of all eight GPUs of a node takes well under a minute."""

SETTLE_LIMIT = 20.0
"""Seconds after a reset in which the driver may still bring the GPU back."""


@dataclass(frozen=True)
class Target:
    """What a task names. With neither it is all GPUs of the node."""

    uuid: str | None = None
    pci_address: str | None = None

    def picks(self, gpu: GpuFacts) -> bool:
        if self.uuid is not None:
            return gpu.uuid == self.uuid
        return self.pci_address is None or gpu.pci_address == self.pci_address


@dataclass(frozen=True)
class ResetReport:
    """`DONE` means proven."""

    outcome: Outcome
    message: str
    facts: HardwareFacts | None = None


def refusal(target: Target, before: Measurement) -> ResetReport | None:
    """Why this reset must not even be tried, if so."""
    facts = before.facts
    picked = [gpu for gpu in facts.gpus if target.picks(gpu)]
    if not picked:
        wanted = target.uuid or target.pci_address or "any GPU"
        return ResetReport(Outcome.LOST, f"NVML does not see {wanted}; nothing was reset", facts)
    if target.uuid and target.pci_address and picked[0].pci_address != target.pci_address:
        places = f"{target.uuid} is at {picked[0].pci_address}, the task says {target.pci_address}"
        return ResetReport(Outcome.UNKNOWN, f"{places}; nothing was reset", facts)
    for gpu in picked:
        if target != Target() and gpu.uuid is None and gpu.index not in before.lost:
            # nvidia-smi is told UUIDs; without one it would reset every GPU.
            unnamed = f"{name(gpu)} does not tell its UUID; nothing was reset"
            return ResetReport(Outcome.UNKNOWN, unnamed, facts)
        if gpu.index in before.lost:
            return ResetReport(Outcome.LOST, f"{name(gpu)} is lost; nothing was reset", facts)
        if gpu.processes is None:
            doubt = f"the driver does not say who holds {name(gpu)}; nothing was reset"
            return ResetReport(Outcome.UNKNOWN, doubt, facts)
        if gpu.processes:
            holders = f"{gpu.processes} processes hold {name(gpu)}; nothing was reset"
            return ResetReport(Outcome.BUSY, holders, facts)
    return None


def shortcomings(target: Target, before: HardwareFacts, after: Measurement, gpus_expected: int) -> list[str]:
    """What is missing from the proof that a reset took effect. Empty: proven as far as NVML can tell.

    A reset clears the recovery action, the pending remap and the volatile error counters, and brings every
    GPU back. Numbers that are still there, or that nobody gives, are no proof.
    """
    missing = [f"{name(gpu)} is lost" for gpu in after.facts.gpus if gpu.index in after.lost]
    complete = max(gpus_expected, len(before.gpus))
    if len(after.facts.gpus) != complete:
        missing.append(f"{len(after.facts.gpus)} of {complete} GPUs are there")
    present = {gpu.uuid: gpu for gpu in after.facts.gpus}
    for old in before.gpus:
        if not target.picks(old):
            continue
        if (gpu := present.get(old.uuid)) is None:
            missing.append(f"{name(old)} is not there")
        elif gpu.index not in after.lost:
            missing += _remains(gpu, old)
    return missing


def gives_sign(target: Target, before: HardwareFacts) -> bool:
    """Whether there was something that only a reset clears, so that its absence afterwards shows a reset."""
    return any(
        gpu.recovery_action or gpu.remap_pending or gpu.ecc_uncorrected
        for gpu in before.gpus
        if target.picks(gpu)
    )


class Resetter:
    """Resets GPUs of this node."""

    def __init__(
        self,
        probe: Probe,
        tool: ResetTool,
        *,
        reset_limit: float = RESET_LIMIT,
        settle_limit: float = SETTLE_LIMIT,
    ) -> None:
        self._probe = probe
        self._tool = tool
        self._reset_limit = reset_limit
        self._settle_limit = settle_limit

    async def carry_out(
        self, target: Target, before: HardwareFacts, *, gpus_expected: int, limit: float
    ) -> ResetReport:
        """Reset and prove. `refusal` must have had no objection.

        `limit` is in seconds: what the task's deadline leaves for nvidia-smi.
        """
        uuids = [gpu.uuid for gpu in before.gpus if target.picks(gpu) and gpu.uuid]
        everything = target == Target()
        try:
            async with self._probe.released():
                answer = await self._tool.reset([] if everything else uuids, min(limit, self._reset_limit))
        except DriverUnresponsive as error:
            return ResetReport(Outcome.UNRESPONSIVE, f"{error}; nothing was reset")
        outcome = classify(answer)
        said = f"nvidia-smi (exit {answer.exit_code}): {answer.output or 'no output'}"
        if outcome is Outcome.UNRESPONSIVE:
            return ResetReport(outcome, f"nvidia-smi did not end in time; {said}")
        if outcome in {Outcome.BUSY, Outcome.UNSUPPORTED, Outcome.LOST}:
            return ResetReport(outcome, f"nvidia-smi refused: {outcome}; {said}")
        # An unclear answer may hide a reset that took effect: the proof decides, not a second call.
        proven = await self.prove(
            target, before, gpus_expected=gpus_expected, needs_sign=outcome is not Outcome.DONE
        )
        return ResetReport(proven.outcome, f"{proven.message}\n{said}", proven.facts)

    async def prove(
        self, target: Target, before: HardwareFacts, *, gpus_expected: int, needs_sign: bool
    ) -> ResetReport:
        """Judge by NVML whether a reset took effect since `before`, and give the GPU time to come back.

        With `needs_sign` nobody knows whether a reset was done at all: then a GPU that was clean before
        proves nothing by being clean.
        """
        if needs_sign and not gives_sign(target, before):
            unclear = "whether a reset was done is unknown, and nothing on the GPU could tell"
            return ResetReport(Outcome.UNVERIFIED, unclear, before)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settle_limit
        while True:
            report = await self._proof(target, before, gpus_expected)
            if report.outcome is not Outcome.UNVERIFIED or loop.time() >= deadline:
                return report
            await asyncio.sleep(1)

    async def _proof(self, target: Target, before: HardwareFacts, gpus_expected: int) -> ResetReport:
        try:
            after = await self._probe.measure()
        except DriverUnresponsive as error:
            return ResetReport(Outcome.UNRESPONSIVE, f"after the reset: {error}")
        except DriverUnavailable as error:
            return ResetReport(Outcome.UNVERIFIED, f"after the reset: {error}")
        if missing := shortcomings(target, before, after, gpus_expected):
            return ResetReport(
                Outcome.UNVERIFIED, f"the reset is not proven: {'; '.join(missing[:4])}", after.facts
            )
        proof = f"no recovery action, no pending remap, {len(after.facts.gpus)} GPUs"
        return ResetReport(Outcome.DONE, proof, after.facts)


def _remains(gpu: GpuFacts, old: GpuFacts) -> list[str]:
    remains = []
    if gpu.recovery_action is None:
        remains.append(f"{name(gpu)} does not say its recovery action")
    elif gpu.recovery_action:
        remains.append(f"{name(gpu)} still asks for {recovery_action_name(gpu.recovery_action)}")
    if gpu.remap_pending is not False:
        remains.append(f"{name(gpu)} still has a pending remap, or does not say")
    if old.ecc_uncorrected and (gpu.ecc_uncorrected is None or gpu.ecc_uncorrected >= old.ecc_uncorrected):
        remains.append(f"{name(gpu)} still counts {gpu.ecc_uncorrected} uncorrected errors")
    return remains

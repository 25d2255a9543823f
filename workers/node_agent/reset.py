"""The GPU reset: find the GPUs, prove that nothing holds them, reset, prove that it took effect.

`tasks.py` asks `reset_refusal` and calls `read_settings`, writes down what was measured and what has to be
restored, then calls `carry_out`. A later start of the agent that finds this note calls `resume`, which never
resets.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_runbooks.activities.kernel_log.marker import Marker, Phase, marker_line
from gpu_runbooks.activities.model.node_task import HardwareFacts, ResetOutcome
from gpu_runbooks.workers.node_agent.device_settings import (
    DeviceSettings,
    SettingsUnreadableError,
    read_settings,
    restore_settings,
    switch_persistence_off,
)
from gpu_runbooks.workers.node_agent.holders import Hold, hold_on, resets_in_progress
from gpu_runbooks.workers.node_agent.kernel_log_writer import write_lines
from gpu_runbooks.workers.node_agent.nvidia_smi import ResetTool, classify, reset_some
from gpu_runbooks.workers.node_agent.nvml import DriverUnavailable, Measurement
from gpu_runbooks.workers.node_agent.probe import DriverUnresponsive, Probe
from gpu_runbooks.workers.node_agent.reset_proof import Target, gives_sign, shortcomings
from gpu_runbooks.workers.node_agent.reset_refusal import NOTHING, ResetReport, refusal
from gpu_runbooks.workers.node_agent.tool import ToolAnswer

TOO_LATE = f"the deadline leaves no time for a reset; {NOTHING}"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How long a reset may take, in seconds."""

    tool: float = 120.0
    """For nvidia-smi. A reset of all eight GPUs of a node takes well under a minute."""
    shortest: float = 10.0
    """With less left for nvidia-smi it is not called: it would be killed at work."""
    release: float = 60.0
    """For holders to go: services that are being stopped take some seconds."""
    settle: float = 20.0
    """After the reset, in which the driver may still bring the GPU back."""
    restore: float = 60.0
    """For persistence mode and MIG instances of all GPUs, each time."""
    pause: float = 1.0
    """Between two looks."""
    before_retry: float = 5.0
    """Between an answer `busy` and the one repetition."""


class Resetter:
    """Resets GPUs of this node."""

    def __init__(
        self, probe: Probe, tool: ResetTool, *, proc: Path, kernel_log: Path, limits: Limits | None = None
    ) -> None:
        self._probe = probe
        self._tool = tool
        self._proc = proc
        self._kernel_log = kernel_log
        self._limits = limits or Limits()

    async def read_settings(
        self, target: Target, before: Measurement
    ) -> tuple[DeviceSettings, ...] | ResetReport:
        """What will have to be restored. Where the driver does not tell, nothing is reset."""
        uuids = [gpu.uuid for gpu, _ in target.of(before) if gpu.uuid]
        try:
            return await self._probe.ask(lambda: read_settings(uuids))
        except SettingsUnreadableError as error:
            unread = f"{error}, so it could not be restored; {NOTHING}"
            return ResetReport(ResetOutcome.UNVERIFIED, unread, before.facts)
        except DriverUnavailable as error:
            return ResetReport(ResetOutcome.UNRESPONSIVE, f"{error}; {NOTHING}", before.facts)

    async def carry_out(
        self,
        target: Target,
        before: HardwareFacts,
        settings: Sequence[DeviceSettings],
        *,
        incident: str,
        gpus_expected: int,
        limit: float,
    ) -> ResetReport:
        """Reset, prove and restore. `refusal` must have had no objection.

        `limit` is in seconds: what is left until the task's deadline.
        """
        if self._tool.hung is not None:
            hung = f"an earlier nvidia-smi (pid {self._tool.hung}) has not ended; {NOTHING}"
            return ResetReport(ResetOutcome.UNRESPONSIVE, hung, before)
        limits = self._limits
        tool_ends = asyncio.get_running_loop().time() + limit - limits.settle
        complaints: list[str] = []
        try:
            complaints += await self._probe.ask(
                lambda: switch_persistence_off(settings), limit=limits.restore
            )
            report = await self._await_release(target, tool_ends - limits.shortest)
        except DriverUnavailable as error:
            report = ResetReport(ResetOutcome.UNRESPONSIVE, f"{error}; {NOTHING}")
        if report is None:
            complaints += self._mark(Phase.BEFORE, incident, target, before)
            try:
                report = await self._reset_and_prove(target, before, gpus_expected, tool_ends)
            except Exception as error:
                logger.exception("reset for %s", incident)
                report = ResetReport(ResetOutcome.UNVERIFIED, f"the agent failed: {error!r}")
            complaints += self._mark(Phase.AFTER, incident, target, before)
        return await self._restored(report, settings, complaints)

    async def resume(
        self,
        target: Target,
        before: HardwareFacts,
        settings: Sequence[DeviceSettings],
        *,
        incident: str,
        gpus_expected: int,
    ) -> ResetReport:
        """Judge and restore what an earlier start of this agent began. It is never begun again."""
        await self._await_earlier_tool()
        report = await self._prove(target, before, gpus_expected, needs_sign=True)
        complaints = self._mark(Phase.AFTER, incident, target, before)
        return await self._restored(report, settings, complaints)

    async def _await_earlier_tool(self) -> None:
        """Wait for an nvidia-smi that an earlier start of this agent left at work, as long as it may take."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.tool
        while loop.time() < deadline:
            if not await asyncio.to_thread(resets_in_progress, self._proc):
                return
            await asyncio.sleep(self._limits.pause)

    async def _await_release(self, target: Target, not_after: float) -> ResetReport | None:
        """Wait until nothing holds the GPUs. Returns why they may not be reset, if so."""
        loop = asyncio.get_running_loop()
        until = min(loop.time() + self._limits.release, not_after)
        if loop.time() > not_after:
            return ResetReport(ResetOutcome.UNKNOWN, TOO_LATE)
        while True:
            measured = await self._probe.measure()
            if refused := refusal(target, measured):
                return refused
            hold = await asyncio.to_thread(hold_on, self._proc, target.of(measured))
            if hold.free:
                return None
            if loop.time() >= until:
                return _held(hold, measured.facts)
            await asyncio.sleep(self._limits.pause)

    async def _reset_and_prove(
        self, target: Target, before: HardwareFacts, gpus_expected: int, tool_ends: float
    ) -> ResetReport:
        answer = None
        try:
            answer = await self._call(target, before, tool_ends)
            if answer is None:
                return ResetReport(ResetOutcome.UNKNOWN, TOO_LATE)
            if classify(answer) is ResetOutcome.BUSY and not reset_some(answer):
                # Nothing was done, so it may be asked once more: a service may just have looked at the GPU.
                await asyncio.sleep(self._limits.before_retry)
                refused = await self._await_release(target, tool_ends - self._limits.shortest)
                if refused is not None:
                    return _still_refused(refused, answer)
                again = await self._call(target, before, tool_ends)
                if again is None:
                    return _still_refused(ResetReport(ResetOutcome.UNKNOWN, TOO_LATE), answer)
                answer = again
        except DriverUnavailable as error:
            # Raised before nvidia-smi is called: it was not, or its answer was `busy`.
            said = f"\n{_said(answer)}" if answer else ""
            return ResetReport(ResetOutcome.UNRESPONSIVE, f"{error}; {NOTHING}{said}")
        outcome = classify(answer)
        if outcome is ResetOutcome.UNRESPONSIVE:
            return ResetReport(outcome, f"nvidia-smi did not end in time; {_said(answer)}")
        if outcome not in {ResetOutcome.DONE, ResetOutcome.UNKNOWN}:
            return ResetReport(outcome, f"nvidia-smi refused; {_said(answer)}")
        # An unclear answer may hide a reset that took effect: the proof decides, not another call.
        needs_sign = outcome is not ResetOutcome.DONE
        proven = await self._prove(target, before, gpus_expected, needs_sign=needs_sign)
        return replace(proven, message=f"{proven.message}\n{_said(answer)}")

    async def _call(self, target: Target, before: HardwareFacts, tool_ends: float) -> ToolAnswer | None:
        """None where the driver took so long to let go that the tool would be killed at work."""
        uuids = [gpu.uuid for gpu in before.gpus if target.picks(gpu) and gpu.uuid]
        async with self._probe.released():
            limit = min(self._limits.tool, tool_ends - asyncio.get_running_loop().time())
            if limit < min(self._limits.shortest, self._limits.tool):
                return None
            return await self._tool.reset([] if target == Target() else uuids, limit)

    async def _prove(
        self, target: Target, before: HardwareFacts, gpus_expected: int, *, needs_sign: bool
    ) -> ResetReport:
        """Judge by NVML whether a reset took effect since `before`, and give the GPU time to come back.

        With `needs_sign` nobody knows whether a reset was done at all: then a GPU that was clean before
        proves nothing by being clean.
        """
        if needs_sign and not gives_sign(target, before):
            unclear = "whether a reset was done is unknown, and nothing on the GPU could tell"
            return ResetReport(ResetOutcome.UNVERIFIED, unclear, before)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.settle
        while True:
            report = await self._proof(target, before, gpus_expected)
            if report.outcome is not ResetOutcome.UNVERIFIED or loop.time() >= deadline:
                return report
            await asyncio.sleep(self._limits.pause)

    async def _proof(self, target: Target, before: HardwareFacts, gpus_expected: int) -> ResetReport:
        try:
            after = await self._probe.measure()
        except DriverUnresponsive as error:
            return ResetReport(ResetOutcome.UNRESPONSIVE, f"after the reset: {error}")
        except DriverUnavailable as error:
            return ResetReport(ResetOutcome.UNVERIFIED, f"after the reset: {error}")
        if missing := shortcomings(target, before, after, gpus_expected):
            unproven = f"the reset is not proven: {'; '.join(missing[:4])}"
            return ResetReport(ResetOutcome.UNVERIFIED, unproven, after.facts)
        proof = f"no recovery action, no pending remap, {len(after.facts.gpus)} GPUs"
        return ResetReport(ResetOutcome.DONE, proof, after.facts)

    async def _restored(
        self, report: ResetReport, settings: Sequence[DeviceSettings], complaints: Sequence[str]
    ) -> ResetReport:
        """The report, once the settings are as they were. A reset that leaves them different is not done."""
        if report.outcome is ResetOutcome.UNRESPONSIVE:
            # One more call would hang as well. A reboot sets persistence mode and MIG anew.
            different = ["persistence mode and MIG geometry were not restored"] if settings else []
        else:
            try:
                different = await self._probe.ask(
                    lambda: restore_settings(settings), limit=self._limits.restore
                )
            except DriverUnavailable as error:
                different = [f"persistence mode and MIG geometry are not restored: {error}"]
        outcome = report.outcome
        if different and outcome is ResetOutcome.DONE:
            outcome = ResetOutcome.UNVERIFIED
        first, *rest = report.message.split("\n", 1)
        head = "; ".join((first, *different, *complaints))
        return replace(report, outcome=outcome, message="\n".join((head, *rest)))

    def _mark(self, phase: Phase, incident: str, target: Target, before: HardwareFacts) -> list[str]:
        """Tell the kernel log. Returns what did not work: a reset without marker is still a reset."""
        markers = (
            Marker(phase, incident, gpu.uuid, gpu.pci_address) for gpu in before.gpus if target.picks(gpu)
        )
        complaint = write_lines(self._kernel_log, map(marker_line, markers))
        return [complaint] if complaint else []


def _held(hold: Hold, facts: HardwareFacts) -> ResetReport:
    outcome = ResetOutcome.BUSY if hold.holders else ResetOutcome.UNKNOWN
    return ResetReport(outcome, f"{hold}; {NOTHING}", facts)


def _still_refused(refused: ResetReport, busy: ToolAnswer) -> ResetReport:
    """Doubts do not outweigh that nvidia-smi said `busy`."""
    outcome = ResetOutcome.BUSY if refused.outcome is ResetOutcome.UNKNOWN else refused.outcome
    return replace(refused, outcome=outcome, message=f"{refused.message}\n{_said(busy)}")


def _said(answer: ToolAnswer) -> str:
    return f"nvidia-smi (exit {answer.exit_code}): {answer.output or 'no output'}"

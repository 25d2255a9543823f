"""The NodeTasks of this node: taken one at a time, refused when stale, and never begun twice."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes.client import MERGE_PATCH, Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.model.node_task import HardwareFacts, NodeTaskKind, ResetOutcome
from gpu_runbooks.workers.node_agent.collection import Collector
from gpu_runbooks.workers.node_agent.device_settings import DeviceSettings
from gpu_runbooks.workers.node_agent.node_lock import NodeLockedError, node_lock
from gpu_runbooks.workers.node_agent.node_task import LONGEST_MESSAGE, NodeTask, acts, ended, objection, read
from gpu_runbooks.workers.node_agent.nvml import DriverUnavailable, read_boot_id
from gpu_runbooks.workers.node_agent.own_node import OwnNode, read_own_node
from gpu_runbooks.workers.node_agent.probe import Probe
from gpu_runbooks.workers.node_agent.reboot import Init, RebootRefusedError
from gpu_runbooks.workers.node_agent.reset import Resetter
from gpu_runbooks.workers.node_agent.reset_proof import Target
from gpu_runbooks.workers.node_agent.reset_refusal import ResetReport, refusal
from gpu_runbooks.workers.node_agent.verdict import judge

RETRY_INTERVAL = 2.0

logger = logging.getLogger(__name__)


class TaskLoop:
    """Works on the tasks of one node until cancelled."""

    def __init__(
        self,
        kubernetes: Kubernetes,
        *,
        namespace: str,
        node: str,
        boot_id_file: Path,
        probe: Probe,
        resetter: Resetter,
        collector: Collector,
        init: Init,
        lock: Path,
    ) -> None:
        self._kubernetes = kubernetes
        self._tasks = (
            f"/apis/{names.NODE_TASK_GROUP}/{names.NODE_TASK_VERSION}"
            f"/namespaces/{namespace}/{names.NODE_TASK_PLURAL}"
        )
        self._node = node
        self._boot_id_file = boot_id_file
        self._probe = probe
        self._resetter = resetter
        self._collector = collector
        self._init = init
        self._lock = lock
        self._left_alone: set[str] = set()
        self._handled: set[str] = set()

    async def run(self) -> None:
        """Follow the tasks for ever. A refusal of the API (no CRD yet, an old token) is tried again."""
        while True:
            try:
                selector = f"spec.nodeName={self._node}"
                async with aclosing(self._kubernetes.follow(self._tasks, field_selector=selector)) as views:
                    async for tasks in views:
                        self._handled &= tasks.keys()
                        self._left_alone &= tasks.keys()
                        done = [await self._work(task) for task in self._open(tasks)]
                        if not all(done):
                            break  # no event need come: the new list brings back what was put off
            except KubernetesError as error:
                logger.warning("cannot follow the tasks of node %s: %s", self._node, error)
            await asyncio.sleep(RETRY_INTERVAL)

    def _open(self, tasks: dict[str, Object]) -> list[Object]:
        """Tasks to work on, the oldest first. What was handled may still look open in an older view."""
        waiting = [task for uid, task in tasks.items() if uid not in self._handled and not ended(task)]
        return sorted(waiting, key=lambda task: str(task["metadata"].get("creationTimestamp")))

    async def _work(self, task: Object) -> bool:
        """Work on a task. Returns False for one that was put off: nothing was done, it has to come again."""
        metadata = task["metadata"]
        with ExitStack() as turn:
            try:
                if acts(task):
                    turn.enter_context(node_lock(self._lock))
                    if (fresh := await self._again(task)) is None:
                        return True
                    task = fresh
                end = await self._carry_out(task)
            except asyncio.CancelledError:
                raise
            except NodeLockedError as error:
                if metadata["uid"] not in self._left_alone:
                    logger.warning("task %s is left alone, not started here: %s", metadata["name"], error)
                self._left_alone.add(metadata["uid"])
                return False
            except KubernetesError as error:
                # All calls to the API stand before the act.
                logger.warning("task %s is put off: %s", metadata["name"], error)
                return False
            except Exception as error:
                logger.exception("task %s", metadata["name"])
                end = _end(succeeded=False, message=f"the agent failed, the outcome is unknown: {error!r}")
            self._handled.add(metadata["uid"])
            await self._write_to_the_end(metadata["name"], metadata["uid"], end, turn)
        return True

    async def _again(self, task: Object) -> Object | None:
        """The task as it is under the lock: whoever had it before may have begun or ended it. None: ended."""
        metadata = task["metadata"]
        found = await self._kubernetes.items(self._tasks, field_selector=f"metadata.name={metadata['name']}")
        current = (one for one in found if one["metadata"]["uid"] == metadata["uid"] and not ended(one))
        return next(current, None)

    async def _carry_out(self, raw: Object) -> Object:
        """The task's final status. Raises `KubernetesError` before anything was done."""
        node = await self._own_node()
        task = read(raw)
        if isinstance(task, str):
            return _end(succeeded=False, message=task)
        boot_id = read_boot_id(self._boot_id_file)
        if reason := objection(task, node, boot_id, datetime.now(UTC)):
            return _end(succeeded=False, message=reason)
        match task.spec.kind:
            case NodeTaskKind.MEASURE:
                await self._begin(task, None)
                return await self._measure(node)
            case NodeTaskKind.COLLECT:
                await self._begin(task, None)
                return await self._collect(node)
            case NodeTaskKind.REBOOT:
                return await self._reboot(task)
            case NodeTaskKind.RESET_GPU:
                return _reset_end(await self._reset(task, node))

    async def _measure(self, node: OwnNode) -> Object:
        try:
            measurement = await self._probe.measure()
        except DriverUnavailable as error:
            return _end(succeeded=False, message=str(error))
        verdict = judge(measurement, node.expected)
        return _end(
            succeeded=verdict.status == "True",
            message=f"{verdict.reason}: {verdict.message}",
            facts=measurement.facts,
        )

    async def _collect(self, node: OwnNode) -> Object:
        """As a measurement, and what else there is. It succeeds with whatever could be had."""
        measured, collected = await asyncio.gather(self._measure(node), self._collector.collect())
        parts = {"kernelLog": collected.kernel_log, "dcgm": collected.dcgm}
        written = {name: None if part is None else asdict(part) for name, part in parts.items()}
        return {**measured, **written, "phase": "Succeeded"}

    async def _reboot(self, task: NodeTask) -> Object:
        if task.begun:
            unknown = "an earlier start of this agent began the reboot: whether init was asked is unknown"
            message = f"{unknown}, and it is not asked again; the proof is another boot id"
            return _end(succeeded=False, message=message)
        await self._begin(task, None)
        try:
            self._init.ask_for_reboot()
        except RebootRefusedError as error:
            return _end(succeeded=False, message=str(error))
        return _end(succeeded=True, message="init was asked for a reboot; the proof is another boot id")

    async def _reset(self, task: NodeTask, node: OwnNode) -> ResetReport:
        target = Target(task.spec.gpu_uuid, task.spec.gpu_pci_address)
        gpus_expected = node.expected.gpus if node.expected else 0
        if task.begun:
            report = await self._resetter.resume(
                target,
                task.status.facts or HardwareFacts(),
                task.status.restore,
                incident=task.spec.incident,
                gpus_expected=gpus_expected,
            )
            resumed = (
                f"an earlier start of this agent began the reset, it is not done again; {report.message}"
            )
            return ResetReport(report.outcome, resumed, report.facts)
        try:
            measured = await self._probe.measure()
        except DriverUnavailable as error:
            return ResetReport(ResetOutcome.UNRESPONSIVE, f"{error}; nothing was reset")
        if report_of_refusal := refusal(target, measured):
            return report_of_refusal
        settings = await self._resetter.read_settings(target, measured)
        if isinstance(settings, ResetReport):
            return settings
        await self._begin(task, measured.facts, settings)
        remaining = (task.spec.deadline - datetime.now(UTC)).total_seconds()
        return await self._resetter.carry_out(
            target,
            measured.facts,
            settings,
            incident=task.spec.incident,
            gpus_expected=gpus_expected,
            limit=max(0.0, remaining),
        )

    async def _own_node(self) -> OwnNode:
        return read_own_node(await self._kubernetes.request("GET", f"/api/v1/nodes/{self._node}"))

    async def _begin(
        self, task: NodeTask, before: HardwareFacts | None, restore: Sequence[DeviceSettings] = ()
    ) -> None:
        """Write that the task is begun: from here on no start of the agent begins it again.

        Raises `KubernetesError` where that is not certain, in particular for a task that was deleted. The
        answer may be lost after the write took effect: so it is sent again, until the task may not start.
        """
        status: Object = {"phase": "Running", "startedAt": _now()}
        if before is not None:
            status["facts"] = _facts(before)
        if restore:
            written = (
                setting.model_dump(mode="json", by_alias=True, exclude_none=True) for setting in restore
            )
            status["restore"] = list(written)
        while True:
            try:
                await self._write(task.name, task.uid, status)
                return
            except KubernetesError as error:
                expired = datetime.now(UTC) > task.spec.start_deadline
                if not _transient(error) or expired:
                    raise
            await asyncio.sleep(RETRY_INTERVAL)

    async def _write_to_the_end(self, name: str, uid: str, status: Object, turn: ExitStack) -> None:
        """Write the final status, however long the API server is away. Only a deleted task needs none.

        The act is over: another agent of the node does not wait for a server that takes no word from us.
        """
        while True:
            try:
                await self._write(name, uid, status)
                return
            except KubernetesError as error:
                if not _transient(error):
                    logger.warning("the end of task %s is not recorded: %s", name, error)
                    return
            turn.close()
            await asyncio.sleep(RETRY_INTERVAL)

    async def _write(self, name: str, uid: str, status: Object) -> None:
        """The UID makes it a conflict to write into another task that was created under the name since."""
        await self._kubernetes.request(
            "PATCH",
            f"{self._tasks}/{name}/status",
            body={"metadata": {"uid": uid}, "status": status},
            content_type=MERGE_PATCH,
        )


def _facts(facts: HardwareFacts) -> Object:
    """Facts as a merge patch: each unknown is an explicit null, or an older answer would stay there."""
    unknown = HardwareFacts().model_dump(mode="json", by_alias=True)
    return {**unknown, **facts.model_dump(mode="json", by_alias=True, exclude_none=True)}


def _transient(error: KubernetesError) -> bool:
    return error.status in {0, 401, 429} or error.status >= 500


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _reset_end(report: ResetReport) -> Object:
    message = f"{report.outcome}: {report.message}"
    end = _end(succeeded=report.outcome is ResetOutcome.DONE, message=message, facts=report.facts)
    return {**end, "outcome": report.outcome.value}


def _end(*, succeeded: bool, message: str, facts: HardwareFacts | None = None) -> dict[str, Any]:
    """Final status. Facts are always written, or those of before the act would stand as those of after."""
    return {
        "phase": "Succeeded" if succeeded else "Failed",
        "finishedAt": _now(),
        "message": message[:LONGEST_MESSAGE],
        "facts": None if facts is None else _facts(facts),
    }

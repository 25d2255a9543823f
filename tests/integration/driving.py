"""Driving incidents on the testbed, and looking at what became of the nodes."""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities.names import BLOCK_ANNOTATION, BLOCK_TAINT, REMEDIATION_QUEUE, incident_id
from gpu_runbooks.workflows.audit import Result, Status
from testbed import gpus
from testbed.fleet import WORKLOAD_NAMESPACE
from testbed.testbed import CLUSTER, Testbed

PATIENCE = 150.0
"""Seconds that only a failure reaches."""

TEMPORAL = Path(sys.executable).with_name("temporal")

WORKERS = ("controller", "cluster-worker", "cloud-worker")


async def start_by_hand(
    testbed: Testbed, node: str, ladder: str | None = "reset"
) -> WorkflowHandle[Any, Result]:
    return await testbed.temporal.client.start_workflow(
        "NodeRemediation",
        {"node": node, "reason": "a test", "operator": "ana", "ladder": ladder},
        id=incident_id(CLUSTER, node),
        task_queue=REMEDIATION_QUEUE,
        result_type=Result,
    )


async def begun(testbed: Testbed, node: str) -> WorkflowHandle[Any, Result]:
    """The incident of a node as soon as there is one."""
    handle = testbed.temporal.client.get_workflow_handle(incident_id(CLUSTER, node), result_type=Result)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await handle.describe()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                await asyncio.sleep(0.1)
            else:
                return handle


async def ended(handle: WorkflowHandle[Any, Result]) -> tuple[Result, list[str]]:
    """Result of an incident, and its acts in order with `!` before one without proof."""
    async with asyncio.timeout(PATIENCE):
        result = await handle.result()
        status = await handle.query("status", result_type=Status, rpc_timeout=timedelta(seconds=30))
    return result, [("" if act.proven else "!") + act.rung for act in status.acts]


async def listed_as_closed(testbed: Testbed, handle: WorkflowHandle[Any, Result]) -> None:
    """Wait until visibility, which lags behind, knows the end of an incident: the ledger reads it there."""
    run_id = handle.result_run_id or (await handle.describe()).run_id
    query = f"WorkflowId = '{handle.id}' AND RunId = '{run_id}' AND ExecutionStatus != 'Running'"
    async with asyncio.timeout(PATIENCE):
        while not [run async for run in testbed.temporal.client.list_workflows(query)]:
            await asyncio.sleep(0.1)


async def status_when(handle: WorkflowHandle[Any, Result], holds: Callable[[Status], bool]) -> Status:
    """The status as soon as it is as wanted."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                seen = await handle.query("status", result_type=Status)
            except WorkflowQueryFailedError:  # it has not opened yet
                seen = None
            if seen is not None and holds(seen):
                return seen
            await asyncio.sleep(0.1)


async def temporal(testbed: Testbed, *arguments: str) -> tuple[int, str]:
    """Exit status and output of the `temporal` command."""
    process = await asyncio.create_subprocess_exec(
        TEMPORAL,
        *arguments,
        "--address",
        testbed.temporal.address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


async def scheduled(handle: WorkflowHandle[Any, Result], activity: str, count: int = 1) -> None:
    """Wait until an activity of this type is scheduled for the n-th time."""
    seen = 0
    async with asyncio.timeout(PATIENCE):
        async for event in handle.fetch_history_events(wait_new_event=True):
            if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                attributes = event.activity_task_scheduled_event_attributes
                seen += attributes.activity_type.name == activity
                if seen == count:
                    return
    raise AssertionError(f"the incident ended before {activity} was scheduled {count} times")


@dataclass(frozen=True)
class Traces:
    """What acts leave behind on one machine: what must not be there twice."""

    reboots: int
    terminations: int
    resets: int


def traces(testbed: Testbed, instance: str, node: str) -> Traces:
    def calls(action: str) -> int:
        return sum(instance in call.instance_ids for call in testbed.cloud.calls(action))

    try:
        resets = gpus.read_state(testbed.agents.machine(node).gpus).resets
    except (KeyError, FileNotFoundError):  # the machine is gone
        resets = 0
    return Traces(calls("RebootInstances"), calls("TerminateInstanceInAutoScalingGroup"), resets)


async def instance_of(testbed: Testbed, node: str) -> str:
    subject = await testbed.fleet.node(node)
    return str(subject["spec"]["providerID"]).rpartition("/")[2]


async def is_in_service(testbed: Testbed, node: str) -> bool:
    """No taint, no cordon and no marker of ours."""
    subject = await testbed.fleet.node(node)
    taints = [taint["key"] for taint in subject["spec"].get("taints") or ()]
    annotations = subject["metadata"].get("annotations") or {}
    return (
        BLOCK_TAINT not in taints
        and not subject["spec"].get("unschedulable")
        and BLOCK_ANNOTATION not in annotations
    )


async def marker_of(testbed: Testbed, node: str) -> dict[str, Any]:
    """The marker of our block on a node."""
    annotations = (await testbed.fleet.node(node))["metadata"]["annotations"]
    marker: dict[str, Any] = json.loads(annotations[BLOCK_ANNOTATION])
    return marker


async def run_pod(testbed: Testbed, node: str, name: str, annotations: dict[str, str]) -> str:
    """Run a pod without a controller on a node, wait until it runs, and return its UID."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "image": "registry.example/app:1"}],
        },
    }
    path = f"/api/v1/namespaces/{WORKLOAD_NAMESPACE}/pods"
    made = await testbed.kubernetes.request("POST", path, body=body)
    await testbed.fleet.wait_until(
        path,
        lambda pods: any(pod["status"]["phase"] == "Running" for pod in pods),
        f"pod {name} that runs",
        field_selector=f"metadata.name={name}",
    )
    return str(made["metadata"]["uid"])


async def holders(testbed: Testbed) -> list[str]:
    """Nodes with a slot; none as long as nobody ever asked the pool's budget for one."""
    budget = testbed.temporal.client.get_workflow_handle(f"budget/{CLUSTER}/p5")
    try:
        state = await budget.query("state")
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return []
    return [holder["node"] for holder in state["holders"]]

"""What is wrong with how a cell ended, in words: block, acts, services, slot, and the audit."""

from collections import Counter

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities.kubernetes.client import KubernetesError, Object
from gpu_runbooks.activities.names import BLOCK_TAINT, PAUSED_SERVICES_ANNOTATION, budget_id
from gpu_runbooks.activities.nodes.node import annotations_of, is_unschedulable, marker_of, taints_of
from gpu_runbooks.workflows.audit import Status
from testbed import gpus
from testbed.chaos.subject import EXPORTER, StuckError, Subject, eventually
from testbed.chaos.table import Expected
from testbed.ec2_server import TERMINATE
from testbed.testbed import CLUSTER

SLOT_SECONDS = 100.0
"""The budget looks for holders that are gone every minute."""

CLOSING_EVENTS = {
    "cancelled": EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
    "terminated": EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
}
"""Last event of a history; completed for all other outcomes."""


async def over(subject: Subject) -> str:
    """Wait for the end of an incident, and return its outcome.

    `needs-operator` counts as one: nothing more happens without a person. Raises `StuckError` for no end.
    """
    outcome = ""

    async def ends() -> bool:
        nonlocal outcome
        try:
            found = await subject.incident.describe()
        except RPCError:  # while Temporal is away
            return False
        if found.status is WorkflowExecutionStatus.TERMINATED:
            outcome = "terminated"
            return True
        seen = await subject.status()
        if seen is None:
            return False
        closed = found.status is not WorkflowExecutionStatus.RUNNING
        outcome = str(seen.outcome) if closed else seen.phase
        return closed or (seen.phase == "needs-operator" and seen.question is not None)

    await eventually(ends, f"the end of incident {subject.workflow_id}")
    return outcome


async def problems(subject: Subject, expected: Expected, outcome: str) -> list[str]:
    """What is not as expected, now that the incident is over; its slot is another matter."""
    seen = await subject.status()
    found: list[str] = []
    if outcome not in expected.outcomes:
        why = f" ({seen.question or seen.reason})" if seen else ""
        found.append(f"ended {outcome}, not {' or '.join(expected.outcomes)}{why}")
    target = seen.target if seen and outcome == "replaced" else subject.node
    return [
        *found,
        *await _node(subject, target, expected),
        *_acts(seen, expected),
        *_traces(subject, expected),
        *await _audit(subject, outcome),
    ]


async def _node(subject: Subject, target: str, expected: Expected) -> list[str]:
    """Whether the block is whole or gone, and is what it should be; whether the services run."""
    try:
        node = await subject.testbed.fleet.node(target)
    except KubernetesError as error:
        if error.status == 404 and expected.terminations:
            return []  # terminated with its machine
        raise
    parts = {
        "marker": marker_of(node) is not None,
        "taint": any(taint["key"] == BLOCK_TAINT for taint in taints_of(node)),
        "cordon": is_unschedulable(node),
    }
    found: list[str] = []
    standing = [part for part, stands in parts.items() if stands]
    if 0 < len(standing) < len(parts):
        found.append(f"of the block there is only the {' and '.join(standing)}")
    if expected.block == "kept" and not standing:
        found.append("the block is lost")
    if expected.block == "none" and standing:
        found.append("the block is left behind")
    marker = marker_of(node)
    if marker is not None and marker.incident != subject.workflow_id:
        found.append(f"the block is of {marker.incident}")
    if _is_paused(node) and expected.services == "run":
        found.append("a GPU service is left paused")
    return found


def _is_paused(node: Object) -> bool:
    label = node["metadata"]["labels"].get(EXPORTER, "true")
    return label != "true" or PAUSED_SERVICES_ANNOTATION in annotations_of(node)


def _acts(seen: Status | None, expected: Expected) -> list[str]:
    if expected.acts is None:
        return []
    acts = tuple(("" if act.proven else "!") + act.rung for act in seen.acts) if seen else ()
    return [] if acts == expected.acts else [f"acts {' '.join(acts)}, not {' '.join(expected.acts)}"]


def _traces(subject: Subject, expected: Expected) -> list[str]:
    """Whether anything was done twice, or not at all, as seen by AWS, the machine and the API server."""
    testbed = subject.testbed
    calls = Counter(
        call.action
        for call in testbed.cloud.calls()
        if subject.instance in call.instance_ids and call.status == 200
    )
    try:
        resets = gpus.read_state(testbed.agents.machine(subject.node).gpus).resets
    except (KeyError, FileNotFoundError):  # the machine is gone
        resets = 0
    counted = {
        "RebootInstances": (calls["RebootInstances"], expected.reboots),
        TERMINATE: (calls[TERMINATE], expected.terminations),
        "nvidia-smi --gpu-reset": (resets, expected.resets),
    }
    evicted = Counter(
        call.path for call, status in testbed.proxy.answered if call.method == "POST" and status < 300
    )
    return [
        *(
            f"{count} times {what}, not {right}"
            for what, (count, right) in counted.items()
            if count > right or (expected.acts is not None and count != right)
        ),
        *(
            f"pod {pod} was evicted {count} times"
            for pod in subject.pods
            if (count := evicted[f"/api/v1/namespaces/default/pods/{pod}/eviction"]) > 1
        ),
    ]


async def _audit(subject: Subject, outcome: str) -> list[str]:
    """Whether the history ends as the outcome says."""
    if outcome == "needs-operator":
        return []
    last = EventType.EVENT_TYPE_UNSPECIFIED
    async for event in subject.incident.fetch_history_events():
        last = event.event_type
    right = CLOSING_EVENTS.get(outcome, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED)
    return [] if last == right else [f"the history ends with {EventType.Name(last)}"]


async def slot_problems(subject: Subject) -> list[str]:
    """Whether the budget still counts the incident that is over, as a holder or as a waiter."""
    budget = subject.testbed.temporal.client.get_workflow_handle(budget_id(CLUSTER, subject.pool))

    async def is_free() -> bool:
        try:
            state = await budget.query("state")
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND  # nobody ever asked for a slot
        known = [*state["holders"], *state["waiters"]]
        return all(request["run_id"] != subject.run_id for request in known)

    try:
        await eventually(is_free, "its slot", SLOT_SECONDS)
    except StuckError:
        return [f"its slot of pool {subject.pool} is still taken after {SLOT_SECONDS:.0f} s"]
    return []

"""What is known of a node for an explanation: the live Node, its open incident, the budget of its pool.

Only reads, and only queries that change nothing. What does not answer in time is said, and left out.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from kubernetes.aio.config import ConfigException
from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError, RPCStatusCode

from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.names import budget_id, incident_id
from gpu_runbooks.activities.nodes.node import NODES, identity_of, is_unschedulable, observe
from gpu_runbooks.workers.policy.explanation import OpenIncident, Seen
from gpu_runbooks.workers.policy.fault_notation import NotationError
from gpu_runbooks.workers.temporal_connection import connect, unanswered
from gpu_runbooks.workflows.search_attributes import RUNBOOK_FAULT, RUNBOOK_PHASE
from gpu_runbooks.workflows.slots import Slots

PATIENCE = 10.0
"""Seconds for all questions to Temporal that are about one thing."""

CALL_TIMEOUT = timedelta(seconds=5)

NO_CLUSTER = "no cluster is named (--cluster or GPU_RUNBOOKS_CLUSTER)"

UNANSWERED = (
    RPCError,
    RPCTimeoutOrCancelledError,
    WorkflowQueryFailedError,
    RuntimeError,  # of a lazy client that cannot connect
    ValueError,  # a description with a status that the SDK has no name for
    TimeoutError,
)


def from_outside(node: str, labels: Mapping[str, str] | None, instance_type: str) -> Seen:
    """A node as the person describes it."""
    identity = NodeIdentity(
        name=node,
        uid="",
        provider_id="",
        instance_id="",
        zone="",
        instance_type=instance_type or (labels or {}).get("node.kubernetes.io/instance-type", ""),
        boot_id="",
    )
    return Seen(identity, labels)


async def look_at_node(seen: Seen, cluster: str) -> Seen:
    """Read the live Node. Raises `NotationError` where there is none of that name."""
    name = seen.identity.name
    try:
        async with Kubernetes.connect() as kubernetes:
            node = await kubernetes.find(f"{NODES}/{name}")
    except (ConfigException, KubernetesError, OSError, ValueError) as error:
        return replace(seen, unseen=(*seen.unseen, f"node {name}: {error or type(error).__name__}"))
    if node is None:
        raise NotationError(
            f"no Node is named {name}: see `kubectl get nodes`, or describe one that is gone with --offline, "
            "--labels and --instance-type"
        )
    return _live(seen, node, cluster)


def _live(seen: Seen, node: Object, cluster: str) -> Seen:
    identity = identity_of(node)
    labels = node["metadata"].get("labels") or {}
    return replace(
        seen,
        # What was typed stands over what the Node says: so a planned label can be tried.
        identity=identity.model_copy(
            update={"instance_type": seen.identity.instance_type or identity.instance_type}
        ),
        labels=labels | dict(seen.labels or {}),
        node=observe(node, incident_id(cluster, identity.name)),
        cordoned=is_unschedulable(node),
    )


async def look_at_temporal(seen: Seen, cluster: str, pool: str) -> Seen:
    """Ask for the node's open incident, and for the state of the pool's budget where the pool is known.

    Asks nothing where no cluster is named: those of another one would be no answer.
    """
    if not cluster:
        return replace(seen, unseen=(*seen.unseen, f"incidents and budget: {NO_CLUSTER}"))
    try:
        client = await connect(lazy=True)
    except ValueError as error:
        return replace(seen, unseen=(*seen.unseen, f"incidents and budget: {error}"))
    try:
        async with asyncio.timeout(PATIENCE):
            incident = await _open_incident(client, incident_id(cluster, seen.identity.name))
    except UNANSWERED as error:
        return replace(seen, unseen=(*seen.unseen, f"incidents and budget: {_why(client, error)}"))
    seen = replace(seen, incident=incident, asked_temporal=True)
    if not pool or incident is not None:
        return seen
    try:
        async with asyncio.timeout(PATIENCE):
            slots = await _slots(client, budget_id(cluster, pool))
    except UNANSWERED as error:
        unseen = f"the budget of pool {pool}: {_why(client, error)} (a query needs a running controller)"
        return replace(seen, unseen=(*seen.unseen, unseen))
    return replace(seen, slots=slots, budget_of=cluster)


async def _open_incident(client: Client, workflow_id: str) -> OpenIncident | None:
    handle = client.get_workflow_handle(workflow_id)
    try:
        found = await handle.describe(rpc_timeout=CALL_TIMEOUT)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    if found.status is not WorkflowExecutionStatus.RUNNING:
        return None
    attributes = found.typed_search_attributes
    open_now = OpenIncident(
        workflow_id,
        found.run_id,
        phase=attributes.get(RUNBOOK_PHASE) or "",
        fault=attributes.get(RUNBOOK_FAULT) or "",
    )
    try:
        status = await handle.query("status", rpc_timeout=CALL_TIMEOUT)
    except UNANSWERED:
        return open_now  # the description says the most of it, and needs no worker
    if not isinstance(status, dict):
        return open_now
    told = {name: str(status.get(name) or "") for name in ("rule", "ladder", "question")}
    return replace(open_now, **told)


async def _slots(client: Client, workflow_id: str) -> Slots | None:
    """State of a budget; None where it does not run, so that nobody holds a slot of it."""
    handle = client.get_workflow_handle(workflow_id)
    try:
        state: Slots = await handle.query(
            "state",
            result_type=Slots,
            reject_condition=QueryRejectCondition.NOT_OPEN,
            rpc_timeout=CALL_TIMEOUT,
        )
    except WorkflowQueryRejectedError:
        return None
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    return state


def _why(client: Client, error: Exception) -> str:
    if isinstance(error, RPCError | RuntimeError):
        return unanswered(client, error)
    return str(error) or "no answer in time"

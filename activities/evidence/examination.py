"""The evidence before a repair, gathered and kept, and what the choice of the repair has to know.

Nothing that is missing keeps the rest back: an agent that is dead is a reason for the repair, not against it.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors
from gpu_runbooks.activities.evidence import bundle as evidence_bundle
from gpu_runbooks.activities.evidence.evidence import KEEP_SECONDS, Evidence
from gpu_runbooks.activities.evidence.kernel_faults import faults_part
from gpu_runbooks.activities.karpenter.other_repairers import imminent_repair
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.node_task import (
    Examination,
    ExamineNode,
    HardwareFacts,
    NodeTaskKind,
    RunNodeTask,
)
from gpu_runbooks.activities.nodes.node import NODES, require_same_machine
from gpu_runbooks.activities.nodes.node_tasks import carry_out, for_history

TIME_TO_KEEP = timedelta(seconds=KEEP_SECONDS + 15)
"""What the sink may need: the agent has to be done so long before the deadline."""

LONGEST_REASON = 300
"""Characters of why a part is missing: these go into the history."""

LONGEST_TEXT = 1000
"""Characters of a sentence for a person."""

MOST_TWINS = 3
"""Nodes that a message names."""

EVENTS = "/api/v1/namespaces/default/events"
"""Events of what has no namespace, such as Nodes, lie in this one."""

logger = logging.getLogger(__name__)


class _Gathering:
    """The bundle as it grows, and what it lacks."""

    def __init__(self) -> None:
        self.parts: Object = {}
        self.missing: list[str] = []
        self.agent_silent = False

    def lack(self, part: str, why: object) -> None:
        self.missing.append(f"{part}: {why}"[:LONGEST_REASON])


async def examine_node(
    kubernetes: Kubernetes, namespace: str, evidence: Evidence, request: ExamineNode
) -> Examination:
    """Gather one bundle of bounded size, keep it, and tell what was measured and who else repairs the node.

    Raises `ApplicationError` NODE_NOT_FOUND or NODE_CHANGED for a Node that is gone or another machine;
    `KubernetesError` where the Node itself cannot be read. All else that fails is in the answer's `missing`
    or in its reference.
    """
    node = await _same_node(kubernetes, request.identity)
    gathering = _Gathering()
    async with asyncio.TaskGroup() as group:
        agent = group.create_task(_ask_agent(kubernetes, namespace, request, gathering))
        group.create_task(_list_events(kubernetes, request.identity.name, gathering))
        group.create_task(_list_pods(kubernetes, request.identity.name, gathering))
        other_repairer = group.create_task(_other_repairer(kubernetes, node, gathering))
        twin = group.create_task(_twin(kubernetes, node, gathering))
    keeps_off = (twin.result() or other_repairer.result())[:LONGEST_TEXT]
    bundle = {
        "version": 1,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "incident": request.incident,
        "run_id": request.run_id,
        "reason": request.reason[:LONGEST_TEXT],
        "identity": request.identity.model_dump(mode="json"),
        "node": evidence_bundle.node_part(node),
        **gathering.parts,
        "other_repairer": keeps_off,
        "missing": gathering.missing,
    }
    name = f"evidence-before-{request.attempt}"
    reference = await evidence.keep(name, bundle, incident=request.incident, run_id=request.run_id)
    return Examination(
        facts=for_history(agent.result()),
        agent_silent=gathering.agent_silent,
        evidence=reference,
        missing=tuple(gathering.missing),
        other_repairer=keeps_off,
    )


async def _same_node(kubernetes: Kubernetes, identity: NodeIdentity) -> Object:
    node = await kubernetes.find(f"{NODES}/{identity.name}")
    if node is None:
        raise errors.refusal(
            errors.NODE_NOT_FOUND, f"node {identity.name} does not exist: there is nothing to examine"
        )
    require_same_machine(node, identity)
    return node


async def _ask_agent(
    kubernetes: Kubernetes, namespace: str, request: ExamineNode, gathering: _Gathering
) -> HardwareFacts | None:
    """What the node's agent has to say. Facts, or None where it gave none."""
    task = RunNodeTask(
        identity=request.identity,
        incident=request.incident,
        run_id=request.run_id,
        kind=NodeTaskKind.COLLECT,
        attempt=request.attempt,
        start_deadline=request.start_deadline,
        deadline=max(request.start_deadline, request.deadline - TIME_TO_KEEP),
    )
    try:
        result, ended = await carry_out(kubernetes, namespace, task)
    except (KubernetesError, ApplicationError) as error:
        gathering.parts["agent"] = None
        gathering.lack("the agent's part", error)
        return None
    gathering.agent_silent = result.outcome == "not_started"
    status = ended.get("status") or {}
    facts = None if result.facts is None else result.facts.model_dump(mode="json", exclude_none=True)
    kernel_log = evidence_bundle.text_part(status.get("kernelLog"), evidence_bundle.KERNEL_LOG, newest=True)
    dcgm = evidence_bundle.text_part(status.get("dcgm"), evidence_bundle.DCGM, newest=False)
    gathering.parts["agent"] = {
        "outcome": result.outcome,
        "message": result.message,
        "facts": evidence_bundle.facts_part(facts),
        "kernel_log": kernel_log,
        "faults": faults_part(status.get("kernelLog"), request.identity.boot_id or "", result.facts),
        "dcgm": dcgm,
    }
    if not ended:
        gathering.lack("the agent's part", result.message)
        return None
    if facts is None:
        gathering.lack("what the driver says of the GPUs", result.message)
    for part, brought in (("the kernel log", kernel_log), ("DCGM's part", dcgm)):
        if brought and brought["note"] and not brought["text"]:
            gathering.lack(part, brought["note"])
    if kernel_log is None:
        gathering.lack("the kernel log", result.message)
    return result.facts


async def _list_events(kubernetes: Kubernetes, node: str, gathering: _Gathering) -> None:
    selector = f"involvedObject.kind=Node,involvedObject.name={node}"
    await _list(kubernetes, gathering, "events", EVENTS, selector, evidence_bundle.events_part)


async def _list_pods(kubernetes: Kubernetes, node: str, gathering: _Gathering) -> None:
    selector = f"spec.nodeName={node}"
    await _list(kubernetes, gathering, "pods", "/api/v1/pods", selector, evidence_bundle.pods_part)


async def _list(
    kubernetes: Kubernetes,
    gathering: _Gathering,
    part: str,
    path: str,
    selector: str,
    bounded: Callable[[list[Object]], Object],
) -> None:
    try:
        listing = await kubernetes.list_objects(path, field_selector=selector)
    except KubernetesError as error:
        gathering.parts[part] = None
        gathering.lack(f"the node's {part}", error)
        return
    gathering.parts[part] = bounded(listing.items)
    if listing.unreadable:
        gathering.lack(f"the node's {part}", f"{listing.unreadable} of them cannot be read")


async def _other_repairer(kubernetes: Kubernetes, node: Object, gathering: _Gathering) -> str:
    try:
        return await imminent_repair(kubernetes, node, datetime.now(UTC))
    except KubernetesError as error:
        gathering.lack("whether somebody else is about to repair the node", error)
        return ""


async def _twin(kubernetes: Kubernetes, node: Object, gathering: _Gathering) -> str:
    """In words, another Node that names the same machine; empty for none.

    A kubelet writes the provider id of its Node itself, and so might name somebody else's machine.
    """
    name, provider_id = node["metadata"]["name"], (node.get("spec") or {}).get("providerID")
    if not provider_id:
        return ""
    try:
        nodes = await kubernetes.items(NODES)
    except KubernetesError as error:
        gathering.lack("whether another Node names the same machine", error)
        return ""
    twins = sorted(
        other["metadata"]["name"]
        for other in nodes
        if (other.get("spec") or {}).get("providerID") == provider_id and other["metadata"]["name"] != name
    )
    if not twins:
        return ""
    return (
        f"nodes {name} and {', '.join(twins[:MOST_TWINS])} all name the machine {provider_id}, and one at "
        "most says the truth: nothing is done to it. Find out whose it is, and delete the Node that is wrong"
    )

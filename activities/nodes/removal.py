"""The Node object of a terminated machine: deleted where nobody else does it, and only for that machine."""

import asyncio
import logging

from temporalio.exceptions import ApplicationError

from gpu_runbooks.activities import errors, names
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError
from gpu_runbooks.activities.model.repair import RemoveNode
from gpu_runbooks.activities.nodes.node import NODES, annotations_of, identity_of

ATTEMPTS = 20
"""Deletions that met another writer before the activity fails, and is retried as a whole."""

PAUSE = 0.05
"""Seconds after the first of them; each further one adds as much."""

logger = logging.getLogger(__name__)


async def remove_node(kubernetes: Kubernetes, request: RemoveNode) -> None:
    """Delete the Node exactly as it was read, if it is the one that the machine was registered as.

    Call it only for a machine that is terminated: pods of a Node that goes are taken for dead. Left alone: a
    Node of another UID or provider id, one that is being deleted already, and one without our block, which
    somebody has given back by hand (the cloud provider removes it in time). No Node is success.

    Raises `ApplicationError` BAD_INPUT for an identity without provider id, since nobody could know which
    machine was terminated, NOT_VERIFIED where other writers were always faster; `KubernetesError`.
    """
    machine = request.identity
    if not machine.provider_id:
        raise errors.refusal(
            errors.BAD_INPUT,
            f"node {machine.name} has no provider id, so which machine was terminated is unknown: nothing "
            f"was deleted. If the machine is gone, `kubectl delete node {machine.name}`",
        )
    path = f"{NODES}/{machine.name}"
    for attempt in range(ATTEMPTS):
        await asyncio.sleep(PAUSE * attempt)
        node = await kubernetes.find(path)
        if node is None or node["metadata"].get("deletionTimestamp"):
            return
        found = identity_of(node)
        if (found.uid, found.provider_id) != (machine.uid, machine.provider_id):
            logger.info("node %s is %s now, and left", machine.name, found.provider_id or "another machine")
            return
        if names.BLOCK_ANNOTATION not in annotations_of(node):
            logger.info("node %s has no block of ours, and is left", machine.name)
            return
        preconditions = {"uid": found.uid, "resourceVersion": node["metadata"]["resourceVersion"]}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        try:
            await kubernetes.request("DELETE", path, body=body)
        except KubernetesError as error:
            if error.status not in {404, 409}:
                raise
        # Read again: gone or going is what counts, not that the call was accepted.
    raise ApplicationError(
        f"the Node {machine.name} is still there after {ATTEMPTS} deletions: others write to it all the time",
        type=errors.NOT_VERIFIED,
    )

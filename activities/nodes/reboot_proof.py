"""Proof of a reboot: another boot id, a Ready that the new boot itself reported, and the devices back."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes.client import Kubernetes, KubernetesError, Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.kubernetes.waiting import seconds_until, wait_for
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import AwaitReboot, RebootProof
from gpu_runbooks.activities.nodes.node import NODES, allocatable, identity_of, readiness, ready_condition

PODS = "/api/v1/pods"

NEVER = datetime.min.replace(tzinfo=UTC)

ADMISSION_ERROR = "UnexpectedAdmissionError"
"""Reason of a pod that its kubelet started before the device plugin was back. It stays Failed."""

MOST_FAILED = 500
"""Failed pods that are looked at: there can be thousands."""

MOST_NAMES = 5

LOOK_AGAIN = 1.0
"""Seconds until a Node is asked for again that is there and cannot be read in a list."""

LOOK_TIMEOUT = 10.0
"""Seconds that the look at failed pods may take: it only adds to the message."""


async def await_reboot(kubernetes: Kubernetes, request: AwaitReboot, since: datetime) -> RebootProof:
    """Wait for the proof until the deadline; `since` is when the wait first began, over all retries.

    `gone` as soon as the API server itself says that the Node of this UID is no more: none comes back under
    its UID. Pods that lost the race against the device plugin are told in the message.

    Raises `KubernetesError` when the Node may not be read.
    """
    sightings = Sightings(request.identity, since, request.gpus)
    name = request.identity.name
    while True:
        proof = await wait_for(
            kubernetes, NODES, sightings.judge, request.deadline, field_selector=f"metadata.name={name}"
        )
        if proof is None:
            proof = RebootProof(proven=False, message=f"not proven by the deadline: {sightings.last}")
        elif proof.gone:
            # A list or watch leaves out what it cannot read, so that it looks gone.
            node = await kubernetes.find(f"{NODES}/{name}")
            if node is None or node["metadata"]["uid"] != request.identity.uid:
                return proof
            if seconds_until(request.deadline) > 0:
                await asyncio.sleep(LOOK_AGAIN)
                continue
            proof = RebootProof(proven=False, message="the Node could not be read in a list by the deadline")
        refused = await _refused(kubernetes, name)
        return proof.model_copy(update={"message": f"{proof.message}{refused}"})


async def _refused(kubernetes: Kubernetes, node: str) -> str:
    """In words, the pods that the kubelet of the node refused; empty for none, or where nobody can say."""
    selector = f"spec.nodeName={node},status.phase=Failed"
    try:
        async with asyncio.timeout(LOOK_TIMEOUT):
            answer = await kubernetes.request(
                "GET", PODS, query={"fieldSelector": selector, "limit": str(MOST_FAILED)}
            )
    except (KubernetesError, TimeoutError):
        return ""
    return refused_pods(objects_in(answer.get("items")))


def refused_pods(pods: list[Object]) -> str:
    """In words, those of the pods that ended with `UnexpectedAdmissionError`. Pure."""
    refused = [pod for pod in pods if (pod.get("status") or {}).get("reason") == ADMISSION_ERROR]
    if not refused:
        return ""
    named = ", ".join(
        f"{pod['metadata'].get('namespace')}/{pod['metadata'].get('name')}" for pod in refused[:MOST_NAMES]
    )
    more = f" and {len(refused) - MOST_NAMES} more" if len(refused) > MOST_NAMES else ""
    return f"; failed with {ADMISSION_ERROR} and not running ({len(refused)}): {named}{more}"


@dataclass
class Sightings:
    """What was seen of a node so far. Pure."""

    identity: NodeIdentity
    since: datetime
    gpus: int = 1
    """Allocatable GPUs that have to be back."""
    last: str = "the Node was not seen"
    """In words, for a person."""
    efa_interfaces: int = 0
    """Most allocatable EFA interfaces seen under the old boot: so many have to be back."""
    old_boot_id: str = ""
    old_boot_reported: datetime = field(default=NEVER)
    """Latest report of Ready under the old boot, by the node's own clock."""
    new_boot_first_reported: datetime | None = None
    """Report of Ready that stood there when the new boot id was first seen."""

    def judge(self, nodes: dict[str, Object]) -> RebootProof | None:
        """The proof, or that there will be none; None while the wait goes on.

        Where the old boot id is unknown, the first one that is seen counts as old: only a change proves.

        Ready may still be the old boot's word. It is the new boot's when it was reported later than any word
        of the old boot that we saw, after the wait began, or again since we first saw the new boot id.
        """
        node = nodes.get(self.identity.uid)
        if node is None:
            self.last = "the Node is gone"
            for other in nodes.values():
                found = identity_of(other)
                self.last = (
                    "another machine has the name now: "
                    f"UID {found.uid}, provider id {found.provider_id or 'empty'}"
                )
            return RebootProof(proven=False, gone=True, message=self.last)
        boot_id, reported = identity_of(node).boot_id.strip(), _reported(node)
        gpus = allocatable(node, names.GPU_RESOURCE) or 0
        efa_interfaces = allocatable(node, names.EFA_RESOURCE) or 0
        state = f"Ready={readiness(node)}, {gpus} of {self.gpus} allocatable {names.GPU_RESOURCE}"
        if self.efa_interfaces:
            state += f", {efa_interfaces} of {self.efa_interfaces} {names.EFA_RESOURCE}"
        self.old_boot_id = self.old_boot_id or self.identity.boot_id.strip() or boot_id
        if not boot_id or boot_id == self.old_boot_id:
            self.old_boot_reported = max(self.old_boot_reported, reported)
            self.efa_interfaces = max(self.efa_interfaces, efa_interfaces)
            self.last = f"the boot id is {'unchanged' if boot_id else 'empty'}, {state}"
            return None
        if self.new_boot_first_reported is None:
            self.new_boot_first_reported = reported
        self.last = f"the boot id changed to {boot_id}, {state}"
        devices_back = gpus >= max(self.gpus, 1) and efa_interfaces >= self.efa_interfaces
        if readiness(node) != "True" or not devices_back or not self._is_word_of_new_boot(reported):
            return None
        since = _time(ready_condition(node).get("lastTransitionTime"))
        return RebootProof(
            proven=True, boot_id=boot_id, ready_since=None if since == NEVER else since, message=self.last
        )

    def _is_word_of_new_boot(self, reported: datetime) -> bool:
        return (
            NEVER < self.old_boot_reported < reported
            or reported >= self.since
            or reported > (self.new_boot_first_reported or reported)
        )


def _reported(node: Object) -> datetime:
    """When Ready was last reported."""
    ready = ready_condition(node)
    return max(_time(ready.get("lastHeartbeatTime")), _time(ready.get("lastTransitionTime")))


def _time(text: object) -> datetime:
    """RFC3339 as the API server writes it; NEVER for what is missing or no time."""
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except ValueError:
        return NEVER

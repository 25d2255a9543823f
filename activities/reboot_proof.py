"""Proof of a reboot: another boot id, and a Ready that the new boot itself reported."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpu_runbooks.activities import names
from gpu_runbooks.activities.kubernetes import Kubernetes, Object
from gpu_runbooks.activities.model.node import NodeIdentity
from gpu_runbooks.activities.model.repair import AwaitReboot, RebootProof
from gpu_runbooks.activities.nodes import NODES, allocatable, identity_of, readiness, ready_condition
from gpu_runbooks.activities.waiting import wait_for

NEVER = datetime.min.replace(tzinfo=UTC)


async def await_reboot(kubernetes: Kubernetes, request: AwaitReboot, since: datetime) -> RebootProof:
    """Wait for the proof until the deadline; `since` is when the wait first began, over all retries.

    Raises `KubernetesError` when the Node may not be read.
    """
    sightings = Sightings(request.identity, since)
    proof = await wait_for(
        kubernetes,
        NODES,
        sightings.judge,
        request.deadline,
        field_selector=f"metadata.name={request.identity.name}",
    )
    return proof or RebootProof(proven=False, message=f"not proven by the deadline: {sightings.last}")


@dataclass
class Sightings:
    """What was seen of a node so far. Pure."""

    identity: NodeIdentity
    since: datetime
    last: str = "the Node was not seen"
    """In words, for a person."""
    old_boot_reported: datetime = field(default=NEVER)
    """Latest report of Ready under the old boot, by the node's own clock."""
    new_boot_first_reported: datetime | None = None
    """Report of Ready that stood there when the new boot id was first seen."""

    def judge(self, nodes: dict[str, Object]) -> RebootProof | None:
        """The proof, or that there will be none; None while the wait goes on.

        Ready may still be the old boot's word. It is the new boot's when it was reported later than any word
        of the old boot that we saw, after the wait began, or again since we first saw the new boot id.
        """
        node = nodes.get(self.identity.uid)
        if node is None:
            if not nodes:
                self.last = "the Node is gone"
                return None
            (other, *_) = nodes.values()
            message = f"another machine has the name now: UID {identity_of(other).uid}"
            return RebootProof(proven=False, message=message)
        boot_id, reported = identity_of(node).boot_id, _reported(node)
        gpus = allocatable(node, names.GPU_RESOURCE)
        state = (
            f"Ready={readiness(node)}, allocatable {names.GPU_RESOURCE} {'missing' if gpus is None else gpus}"
        )
        if not boot_id or boot_id == self.identity.boot_id:
            self.old_boot_reported = max(self.old_boot_reported, reported)
            self.last = f"the boot id is {'unchanged' if boot_id else 'empty'}, {state}"
            return None
        if self.new_boot_first_reported is None:
            self.new_boot_first_reported = reported
        self.last = f"the boot id changed to {boot_id}, {state}"
        if readiness(node) != "True" or not gpus or not self._is_word_of_new_boot(reported):
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

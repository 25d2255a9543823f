"""The nodes of the cluster, as far as the watch keeps them: who each is, and what is bad about it.

A Node has 15 to 30 KB, some have hundreds; what is kept has less than one.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.kubernetes.listing import Followed
from gpu_runbooks.activities.names import digest
from gpu_runbooks.activities.nodes.node import LONGEST_BOOT_ID, LONGEST_PROVIDER_ID, PROVIDER_ID
from gpu_runbooks.workers.intake.reported_conditions import Conditions, Watched, conditions_of, moment


@dataclass(frozen=True, slots=True)
class KeptNode:
    """What is kept of a Node."""

    name: str
    uid: str
    provider_id: str
    instance_id: str
    """EC2 instance; empty where the provider id names none."""
    boot_id: str
    created: datetime | None
    conditions: Conditions
    covered: str
    """Stands for the machine and the labels by which policy finds the pool and the hardware of the node."""


def kept(node: Object, watched: Watched, labels: Collection[str] = ()) -> KeptNode:
    """What is kept of a Node that has a name and a UID. Raises nothing, whatever else is in it.

    `labels` are the keys of the labels that policy looks at.
    """
    metadata, spec, status = (_mapping(node.get(part)) for part in ("metadata", "spec", "status"))
    provider_id = _text(spec.get("providerID"), LONGEST_PROVIDER_ID)
    shown = _mapping(metadata.get("labels"))
    machine = PROVIDER_ID.fullmatch(provider_id)
    return KeptNode(
        name=metadata["name"],
        uid=metadata["uid"],
        provider_id=provider_id,
        instance_id=machine["instance"] if machine else "",
        boot_id=_text(_mapping(status.get("nodeInfo")).get("bootID"), LONGEST_BOOT_ID),
        created=moment(metadata.get("creationTimestamp")),
        conditions=conditions_of(node, watched),
        covered=digest(repr(provider_id), *(f"{key}={shown.get(key)!r}" for key in sorted(labels))),
    )


class Fleet:
    """All nodes, by the watch of the source `node conditions`, for whoever has to find one."""

    def __init__(self) -> None:
        self._nodes: dict[str, KeptNode] = {}
        self._of_instance: dict[str, set[str]] = {}
        self._followed: Followed[KeptNode] | None = None

    @property
    def ready(self) -> bool:
        """Whether all nodes have been seen once. Before that, a node that is not found may exist."""
        return self._followed is not None

    def node_of_instance(self, instance_id: str) -> str | None:
        """Name of the Node of an EC2 instance; of several, the youngest. None where there is none."""
        nodes = [self._nodes[uid] for uid in self._of_instance.get(instance_id, ())]
        return max(nodes, key=_age_order).name if nodes else None

    def see(self, nodes: Followed[KeptNode]) -> Iterator[tuple[str, KeptNode | None]]:
        """Take in what a watch shows: UIDs of nodes that came or changed, and of those that went (None)."""
        changed = nodes.changed
        if nodes is not self._followed:  # a whole list, which does not name what has gone
            changed = changed | (self._nodes.keys() - nodes.keys())
        seen = [(uid, self._take(uid, nodes.get(uid))) for uid in changed]
        self._followed = nodes
        return iter(seen)

    def _take(self, uid: str, node: KeptNode | None) -> KeptNode | None:
        before = self._nodes.pop(uid, None)
        if before is not None and before.instance_id:
            same = self._of_instance[before.instance_id]
            same.discard(uid)
            if not same:
                del self._of_instance[before.instance_id]
        if node is not None:
            self._nodes[uid] = node
            if node.instance_id:
                self._of_instance.setdefault(node.instance_id, set()).add(uid)
        return node


def _age_order(node: KeptNode) -> tuple[datetime, str]:
    return node.created or datetime.min.replace(tzinfo=UTC), node.uid


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any, longest: int) -> str:
    return value if isinstance(value, str) and len(value) <= longest else ""

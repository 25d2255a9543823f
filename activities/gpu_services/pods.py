"""The pods of the GPU services: which are on a node, and which would come back to it. No I/O."""

from collections.abc import Iterable

from gpu_runbooks.activities.kubernetes.client import Object
from gpu_runbooks.activities.kubernetes.listing import objects_in
from gpu_runbooks.activities.nodes.node import taints_of

ENDED = frozenset({"Succeeded", "Failed"})

OF_KUBERNETES = "node.kubernetes.io/"
"""Taints of the node controller, such as that of a cordon: they come and go, and DaemonSets tolerate most."""


def pods_of_services(pods: Iterable[Object], keys: Iterable[str]) -> list[Object]:
    """Pods that a DaemonSet runs on the node by one of these labels, and that may still have processes."""
    wanted = set(keys)
    return [
        pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in ENDED
        and any(
            owner.get("kind") == "DaemonSet" for owner in objects_in(pod["metadata"].get("ownerReferences"))
        )
        and not wanted.isdisjoint(_labels_asked_for(pod))
    ]


def kept_off(pods: Iterable[Object], node: Object) -> dict[str, str]:
    """Taint, as `key:effect`, that would keep each of these pods off the node were it to go. By pod.

    A taint with NoSchedule lets a pod stay that is there, and its DaemonSet makes no new one.
    """
    found = {}
    for pod in pods:
        tolerations = objects_in((pod.get("spec") or {}).get("tolerations"))
        for taint in taints_of(node):
            matters = taint.get("effect") in {"NoSchedule", "NoExecute"}
            if not matters or str(taint.get("key")).startswith(OF_KUBERNETES):
                continue
            if not any(_tolerates(toleration, taint) for toleration in tolerations):
                found[name_of(pod)] = f"{taint.get('key')}:{taint.get('effect')}"
    return found


def name_of(pod: Object) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in {None, "", taint.get("effect")}:
        return False
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if operator == "Exists":
        return key in {"", taint.get("key")}
    same_value = (toleration.get("value") or "") == (taint.get("value") or "")
    return operator == "Equal" and key == taint.get("key") and same_value


def _labels_asked_for(pod: Object) -> set[str]:
    """Keys of node labels that decide whether the pod may be on a node."""
    spec = pod.get("spec") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = objects_in(required.get("nodeSelectorTerms"))
    expressions = (each for term in terms for each in objects_in(term.get("matchExpressions")))
    return {*(spec.get("nodeSelector") or {}), *(str(each.get("key")) for each in expressions)}

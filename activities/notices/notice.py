"""The words of a notice, as an Event of Kubernetes has them. Pure."""

from datetime import datetime
from typing import Any

from gpu_runbooks.activities import names
from gpu_runbooks.activities.model.notify import KubernetesObject, NotifyOwner

REASON = "GpuApplicationFault"
CONTROLLER = f"{names.PREFIX}/cluster-worker"

LONGEST_NOTE = 1024
"""Bytes, by the API's own validation of `note`."""

LONGEST_SUMMARY = 200


def event(about: KubernetesObject, request: NotifyOwner, now: datetime) -> dict[str, Any]:
    """The Event for one object. Same fault, same object: same name, so that none is written twice."""
    (first, *_), fault = request.nodes, request.fault
    which = names.digest(fault.fingerprint, about.kind, about.namespace, about.name, about.uid)
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"gpu-application-fault-{which}", "namespace": about.namespace},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Warning",
        "reason": REASON,
        "action": "NotifyOwner",
        "note": note(request),
        "regarding": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            **({"uid": about.uid} if about.uid else {}),
        },
        "related": {"apiVersion": "v1", "kind": "Node", "name": first.name, "uid": first.uid},
        "reportingController": CONTROLLER,
        "reportingInstance": "cluster-worker",
    }


def note(request: NotifyOwner) -> str:
    """What was seen where, and that nothing is done to the node. Plain text of at most 1,024 bytes."""
    fault = request.fault
    code = f"Xid {fault.code}" if fault.source == "xid" else f"{fault.source} {fault.code}"
    gpu = fault.entity.uuid or fault.entity.pci_address
    where = f"GPU {gpu} of node {request.nodes[0].name}" if gpu else f"node {request.nodes[0].name}"
    if request.node_count > 1:
        where += f", and on {request.node_count - 1} more nodes of {request.job or 'the cluster'}"
    told = fault.pod or "not told by the source: every pod with GPUs of the node gets this"
    pod = "" if request.job else f" Pod: {told}."
    said = _plain(fault.summary)[:LONGEST_SUMMARY]
    seen = f"{fault.first_seen:%Y-%m-%d %H:%M:%S} UTC" + (f": {said}" if said else "")
    text = (
        f"{code} on {where}, seen first {seen}. Such faults come from the application as a rule, so nothing "
        f"is done to the node: look at the job's own logs of that time.{pod} Recorded in Temporal as "
        f"{request.incident}"
    )
    return _plain(text).encode()[:LONGEST_NOTE].decode(errors="ignore")


def _plain(text: str) -> str:
    """One line without control characters."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
